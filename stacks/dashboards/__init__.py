"""Dashboards and alert rules of Grafana: Python here, JSON in the assembly (`documents.files`)."""
