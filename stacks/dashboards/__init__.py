"""Dashboards and alert rules of Grafana, built from Python into built/ by `python -m stacks.dashboards`; synthesis only reads the files."""

from __future__ import annotations

from pathlib import Path

BUILT = Path(__file__).resolve().parent / "built"
