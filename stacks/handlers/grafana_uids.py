"""What ties dashboards, alert rules and their data sources together in Grafana: our uids, which never change."""

FOLDER_UID = "hyperpod-rl"
FOLDER_TITLE = "hyperpod-rl"
PROMETHEUS_UID = "hyperpod-rl-prometheus"
CLOUDWATCH_UID = "hyperpod-rl-cloudwatch"
ALERTS = "alerts.json"
