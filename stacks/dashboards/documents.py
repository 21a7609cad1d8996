"""The files that Grafana gets: one JSON for each dashboard by its uid, and alerts.json."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

from stacks.dashboards import alerts, grafana
from stacks.dashboards.boards import BOARDS
from stacks.handlers.grafana_uids import ALERTS


def files() -> Mapping[str, str]:
    """Name -> content; the same bytes every time."""
    made = {f"{board.uid}.json": grafana.document(board) for board in BOARDS}
    return {name: json.dumps(document, indent=1, sort_keys=True) + "\n" for name, document in {**made, ALERTS: alerts.documents()}.items()}


def write(folder: Path) -> None:
    """Write `files` into a folder that exists."""
    for name, text in files().items():
        (folder / name).write_text(text, encoding="utf-8")
