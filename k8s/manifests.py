"""All charts of an environment as plain objects, and as files below dist/<environment>/, the same bytes every time."""

from __future__ import annotations

import contextlib
import json
import re
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import cdk8s
import yaml

from config import gpu_rules, kubernetes_rules
from config.digest import folder_digest
from config.environment import Environment
from config.load import ROOT
from config.problems import Refused
from k8s import model, platform, raycluster, rayservice, supervisor
from k8s.objects import Json

CHARTS: dict[str, Callable[[cdk8s.App, Environment], cdk8s.Chart]] = {
    platform.CHART: platform.chart,
    model.CHART: model.chart,
    raycluster.CHART: raycluster.chart,
    rayservice.CHART: rayservice.chart,
    supervisor.CHART: supervisor.chart,
}


def charts(env: Environment) -> dict[str, list[Json]]:
    """Objects by chart, in the order in which they are to be applied. Placeholders are still in them (config/placeholders.py).

    Raises Refused with everything that KubeRay, Ray Serve or the environment's GPUs would refuse.
    """
    app = cdk8s.App()
    made = {name: json.loads(json.dumps(make(app, env).to_json())) for name, make in CHARTS.items()}
    objects = [member for members in made.values() for member in members]
    if found := [*(problem for member in objects for problem in kubernetes_rules.problems(member)), *gpu_rules.problems(objects, env)]:
        raise Refused(found)
    return made


def write(env: Environment, root: Path | None = None) -> Path:
    """Write dist/<environment>/<chart>/<nn>-<kind>-<name>.yaml below `root` (the project by default) and return the folder.

    Each file is replaced as a whole, files of an earlier write that no chart makes any more are removed, and what is
    already right is not touched.
    """
    folder = (root or ROOT) / "dist" / env.name
    wanted: set[Path] = set()
    for chart, members in charts(env).items():
        for index, member in enumerate(members):
            path = folder / chart / file_name(index, member)
            wanted.add(path)
            path.parent.mkdir(parents=True, exist_ok=True)
            _replace(path, dump(member).encode(), through=folder.parent)
    for path in sorted(folder.rglob("*"), reverse=True):
        if path.is_dir() and not path.is_symlink():
            with contextlib.suppress(OSError):  # not empty, or gone: two of us may run at once
                path.rmdir()
        elif path not in wanted:
            path.unlink(missing_ok=True)
    return folder


def file_name(index: int, member: Json) -> str:
    """Name of an object's file; the number keeps the order of apply."""
    namespace = member["metadata"].get("namespace")
    parts = [f"{index:02d}", member["kind"].lower(), *([namespace] if namespace else []), member["metadata"]["name"]]
    return re.sub(r"\$\{(\w+)\}", r"\1", "-".join(parts)) + ".yaml"  # a placeholder would be a shell's own text


def digest(folder: Path) -> str:
    """SHA-256 over the names and bytes of all files below the folder, as the launcher prints it when it applies them."""
    return folder_digest(folder).removeprefix("sha256:")


def dump(member: Json) -> str:
    """One object as YAML, keys sorted as cdk8s sorts them."""
    return yaml.dump(member, Dumper=_Dumper, sort_keys=False, default_flow_style=False, width=10_000, allow_unicode=True)


class _Dumper(yaml.SafeDumper):
    """Quotes what another YAML reader would take for something else than text, and writes long texts as blocks."""

    def ignore_aliases(self, data: Any) -> bool:
        return True


_BREAKS = set("\r\x85\u2028\u2029\ufeff")  # line ends for one reader of YAML and text for another
_WORDS = {"y", "n", "yes", "no", "on", "off", "true", "false", "null", "~", ""}


def _text(dumper: yaml.SafeDumper, value: str) -> yaml.Node:
    # PyYAML leaves `1e3` and `0o17` bare, which Kubernetes' reader takes for numbers; every text that looks like one is quoted.
    if _BREAKS & set(value):
        return dumper.represent_scalar("tag:yaml.org,2002:str", value, style='"')
    if "\n" in value and not any(line != line.rstrip() for line in value.split("\n")):
        return dumper.represent_scalar("tag:yaml.org,2002:str", value, style="|")
    if value.lower() in _WORDS or value[0] in "+-.0123456789":
        return dumper.represent_scalar("tag:yaml.org,2002:str", value, style="'")
    return dumper.represent_scalar("tag:yaml.org,2002:str", value)


_Dumper.add_representer(str, _text)


def _replace(path: Path, content: bytes, *, through: Path) -> None:
    if path.is_file() and path.read_bytes() == content:
        return
    # Made outside of the environment's folder, where a reader, a digest or another writer's sweep would meet it.
    with tempfile.TemporaryDirectory(dir=through, prefix=".") as folder:
        beside = Path(folder) / path.name
        beside.write_bytes(content)
        beside.replace(path)
