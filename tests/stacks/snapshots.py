"""Templates and manifests of every environment as files, without the hashes of assets: `python -m tests.stacks.snapshots` writes them.

A change of a stack or a chart then shows in a review as what it changes, resource by resource.
"""

from __future__ import annotations

import json
import re
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml

from config import load
from k8s import manifests
from tests.stacks.assembly import Assembly, synthesize

FOLDER = Path(__file__).resolve().parent / "snapshots"
ENVIRONMENTS = ("reference", "production", "local")
COMMAND = "python -m tests.stacks.snapshots"
ASSET = re.compile(r"[0-9a-f]{64}")


class _Dumper(yaml.SafeDumper):
    """Long texts as blocks, no aliases: a reader of a difference looks at one place."""

    def ignore_aliases(self, data: Any) -> bool:
        """Write everything out where it stands."""
        return True


def _text(dumper: yaml.SafeDumper, value: str) -> yaml.ScalarNode:
    return dumper.represent_scalar("tag:yaml.org,2002:str", value, style="|" if "\n" in value else None)


_Dumper.add_representer(str, _text)


def normal(value: Any) -> Any:
    """A value without asset hashes, and with JSON texts opened, so that a difference inside one is a line."""
    if isinstance(value, Mapping):
        return {key: normal(item) for key, item in value.items()}
    if isinstance(value, list):
        return [normal(item) for item in value]
    if not isinstance(value, str):
        return value
    if value[:1] in "{[":
        try:
            return {"json": normal(json.loads(value))}
        except ValueError:
            pass
    return ASSET.sub("<asset>", value)


def texts(name: str, assembly: Assembly) -> dict[str, str]:
    """File below the snapshot folder -> what is in it, of one environment."""
    found = {f"{name}/{stack}.template.yaml": _dump(normal(template)) for stack, template in assembly.templates.items()}
    order = {stack: sorted(below) for stack, below in sorted(assembly.below.items())}
    found[f"{name}/stacks.yaml"] = _dump({"below": order, "protected": sorted(assembly.protected)})
    charts = manifests.charts(load.load(name))
    return found | {f"{name}/{chart}.manifest.yaml": "---\n".join(_dump(item) for item in objects) for chart, objects in charts.items()}


def _dump(value: Any) -> str:
    return str(yaml.dump(_plain(value), Dumper=_Dumper, sort_keys=True, width=160, allow_unicode=True))


def _plain(value: Any) -> Any:
    return json.loads(json.dumps(value, default=str))


def different(name: str, assembly: Assembly) -> list[str]:
    """Files of an environment that are not, or no longer, what is made now."""
    made = texts(name, assembly)
    kept = {f"{name}/{path.name}": path.read_text(encoding="utf-8") for path in (FOLDER / name).glob("*.yaml")}
    return sorted(file for file in {*made, *kept} if made.get(file) != kept.get(file))


def write(name: str, assembly: Assembly) -> list[str]:
    """Make the files what they should be; returns those that changed."""
    changed, made = different(name, assembly), texts(name, assembly)
    for file in changed:
        path = FOLDER / file
        if file in made:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(made[file], encoding="utf-8")
        else:
            path.unlink()
    return changed


def main() -> int:
    """Write all snapshots and say which files changed."""
    for name in ENVIRONMENTS:
        with tempfile.TemporaryDirectory() as folder:
            for file in write(name, synthesize(load.load(name), Path(folder))):
                print(f"wrote {FOLDER / file}" if (FOLDER / file).exists() else f"removed {FOLDER / file}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
