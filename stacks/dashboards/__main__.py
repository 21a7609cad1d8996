"""`python -m stacks.dashboards`: write built/ from boards and alerts; with `--check` nothing is written, and a stale file is an error."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Mapping

from stacks.dashboards import BUILT, alerts, grafana
from stacks.dashboards.boards import BOARDS
from stacks.handlers.grafana_uids import ALERTS


def files() -> Mapping[str, str]:
    """Name and content of every file below built/: one for each dashboard by its uid, and alerts.json."""
    made = {f"{board.uid}.json": grafana.document(board) for board in BOARDS}
    return {name: _text(document) for name, document in {**made, ALERTS: alerts.documents()}.items()}


def stale(wanted: Mapping[str, str]) -> list[str]:
    """Files that are missing, different, or not to be there."""
    there = {path.name: path.read_text(encoding="utf-8") for path in BUILT.glob("*.json")}
    return sorted(name for name in there.keys() | wanted.keys() if there.get(name) != wanted.get(name))


def main(arguments: list[str] | None = None) -> int:
    """Exit code 0; 1 where `--check` finds a stale file."""
    parser = argparse.ArgumentParser(prog="python -m stacks.dashboards", description="Write Grafana's dashboards and alert rules.")
    parser.add_argument("--check", action="store_true", help="write nothing, fail if a file is not as it would be written")
    check = parser.parse_args(arguments).check
    wanted = files()
    changed = stale(wanted)
    if check:
        print(*(f"{name} is stale: run `python -m stacks.dashboards`" for name in changed), sep="\n", end="\n" if changed else "")
        return 1 if changed else 0
    BUILT.mkdir(exist_ok=True)
    for name in changed:
        if name in wanted:
            (BUILT / name).write_text(wanted[name], encoding="utf-8")
        else:
            (BUILT / name).unlink()
        print(BUILT / name)
    return 0


def _text(document: object) -> str:
    return json.dumps(document, indent=1, sort_keys=True) + "\n"


if __name__ == "__main__":
    sys.exit(main())
