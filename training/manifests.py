"""What `python -m k8s` wrote for the RayCluster or the RayService: found, checked, applied as it lies there, compared with what is live."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, Literal

from config.digest import folder_digest
from config.environment import Environment
from config.load import ROOT
from config.problems import Problem, Refused
from training.kubernetes import Kubectl, Rejected

Json = dict[str, Any]
Kind = Literal["RayCluster", "RayService"]
FOLDERS: Final[Mapping[Kind, str]] = {"RayCluster": "raycluster", "RayService": "rayservice"}
RESOURCES: Final[Mapping[Kind, str]] = {"RayCluster": "rayclusters.ray.io", "RayService": "rayservices.ray.io"}


@dataclass(frozen=True)
class Manifests:
    """A folder of dist/: its files, their common digest, and the Ray object among them."""

    folder: Path
    files: Sequence[Path]
    digest: str
    ray: Mapping[str, Any] = field(default_factory=dict)


def find(
    env: Environment, environment_name: str, kind: Kind, *, wanted: tuple[str, str], root: Path = ROOT
) -> tuple[Manifests, list[Problem]]:
    """The manifests of one kind, and what is wrong with them so far: more checks add to it.

    Args:
        wanted: namespace and name that the environment gives the Ray object.

    Raises Refused where there are no manifests at all, or none that can be read.
    """
    from config import gpu_rules, kubernetes_rules, serve_rules

    folder = root / "dist" / env.name / FOLDERS[kind]
    files = sorted(folder.glob("*.yaml")) if folder.is_dir() else []
    if not files:
        raise Refused(Problem("manifests", str(folder), f"there are no manifests of the {kind}", rewrite(environment_name)))
    objects, found = read_objects(files)
    rays = [each for each in objects if each.get("kind") == kind]
    have = [(each.get("metadata", {}).get("namespace"), each.get("metadata", {}).get("name")) for each in rays]
    if not found and have != [wanted]:
        said = ", ".join(f"{namespace}/{name}" for namespace, name in have) or "none"
        rule = f"the environment's {kind} is {'/'.join(wanted)}, these files hold {said}"
        found.append(Problem("manifests", str(folder), rule, rewrite(environment_name)))
    for each in rays:
        found += kubernetes_rules.problems(each)
        found += serve_rules.behind_training(each, env)
    # Those of the other kind count, too, where the two do not take turns.
    beside = [] if env.serving.share_workers else [other for name, other in FOLDERS.items() if name != kind]
    more = [each for other in beside for each in read_objects(sorted((folder.parent / other).glob("*.yaml")))[0]]
    found += gpu_rules.problems([*rays, *more], env)
    return Manifests(folder=folder, files=files, digest=folder_digest(folder), ray=rays[0] if rays else {}), found


def rewrite(environment_name: str) -> str:
    """What mends manifests that do not fit."""
    return f"write them: `python -m k8s --env {environment_name}`"


def read_objects(files: Sequence[Path]) -> tuple[list[Json], list[Problem]]:
    """Every object of these YAML files, and what is wrong with the files."""
    import yaml

    objects: list[Json] = []
    found: list[Problem] = []
    for path in files:
        try:
            documents = list(yaml.load_all(path.read_text(encoding="utf-8"), Loader=getattr(yaml, "CSafeLoader", yaml.SafeLoader)))
        except (yaml.YAMLError, UnicodeDecodeError) as error:
            rule = f"this is not valid YAML: {' '.join(str(error).split())}"
            found.append(Problem("manifests", str(path), rule, "write the manifests anew"))
            continue
        objects += [each for each in documents if isinstance(each, dict)]
    return objects, found


def apply(kubectl: Kubectl, folder: Path) -> None:
    """Apply a folder's files as they lie there. Raises Rejected with what the API server says, and the step that is missing."""
    try:
        kubectl.apply(folder)
    except Rejected as error:
        raise Rejected(f"{error}{missing_step(kubectl.environment, str(error))}") from None


def changes(kubectl: Kubectl, found: Manifests) -> Sequence[str]:
    """Fields of the Ray object's specification that applying would change; empty where it does not exist.

    What is taken out of a mapping is not seen, since the API server adds fields of its own there.
    """
    metadata = found.ray["metadata"]
    live = kubectl.get(RESOURCES[found.ray["kind"]], namespace=metadata["namespace"], name=metadata["name"])
    return [] if live is None else list(changed_fields(live.get("spec"), found.ray.get("spec"), "spec"))


def would(changed: Sequence[str], *, exists: bool) -> str:
    """What applying would do, for `--dry-run`: half a sentence behind the object's name."""
    return f"would change {', '.join(changed)}" if changed else "nothing would change" if exists else "would be created"


def changed_fields(live: object, wanted: object, where: str) -> Iterator[str]:
    """Paths at which what is wanted differs from what is there; what the API server added there is passed over."""
    if isinstance(live, Mapping) and isinstance(wanted, Mapping):
        for key, value in wanted.items():
            yield from changed_fields(live.get(key), value, f"{where}.{key}")
    elif isinstance(live, list) and isinstance(wanted, list) and len(live) == len(wanted):
        for index, (before, after) in enumerate(zip(live, wanted, strict=True)):
            yield from changed_fields(before, after, f"{where}[{index}]")
    elif live != wanted and not (live is None and wanted in ({}, [], "", 0, False)):
        yield where


def missing_step(env: Environment, said: str) -> str:
    """What to run where the API server says that a namespace or a kind is missing; '' for anything else."""
    if ("namespace" in said and "not found" in said) or "no matches for kind" in said:
        return f"; the Platform stack brings namespace and KubeRay: `cdk deploy --all -c env={env.name}`"
    return ""
