"""A pull request as data: one file, a line that it had and the line that it has. Both sides are made in this process.

A changed module is imported anew, and with it everything of ours that could know it; CDK itself stays loaded, so a side takes a second
and not eight.
"""

from __future__ import annotations

import contextlib
import importlib.abc
import importlib.machinery
import importlib.util
import sys
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import ModuleType
from typing import Any

import yaml

from config.load import ROOT
from operations.review import facts, synthesis
from operations.review.sides import Side

FOLDER = Path(__file__).parent
OURS = ("config", "k8s", "stacks", "training", "tests.stacks.assembly")


@dataclass(frozen=True)
class PullRequest:
    """One of pull_requests.yaml. `risks` are the names that the review must give, `effect` the worst on a running job."""

    name: str
    environment: str
    file: str
    old: str
    new: str
    effect: str = "nothing"
    risks: tuple[str, ...] = field(default=())
    replaced: tuple[str, ...] = field(default=())

    @property
    def text(self) -> str:
        """The file as this pull request leaves it."""
        before = (ROOT / self.file).read_text(encoding="utf-8")
        assert before.count(self.old) == 1, f"{self.name}: {self.file} has {before.count(self.old)} times {self.old!r}"
        return before.replace(self.old, self.new)


def pull_requests() -> list[PullRequest]:
    """All of them, in the order of the file."""
    found = []
    for each in yaml.safe_load((FOLDER / "pull_requests.yaml").read_text(encoding="utf-8")):
        for name in ("risks", "replaced"):
            each[name] = tuple(each.get(name, ()))
        each.setdefault("environment", "reference")
        each.setdefault("file", f"environments/{each['environment']}.yaml")
        found.append(PullRequest(**each))
    return found


def base(environment: str, folder: Path | None = None) -> Side:
    """The environment as it is in this checkout."""
    return _side("base", str(ROOT / "environments" / f"{environment}.yaml"), folder)


def head(request: PullRequest, folder: Path | None = None) -> Side:
    """The environment as the pull request leaves it."""
    environment = ROOT / "environments" / f"{request.environment}.yaml"
    if request.file.endswith(".py"):
        with _changed(request.file.removesuffix(".py").replace("/", "."), request.text):
            return _side("head", str(environment), folder)
    assert ROOT / request.file == environment
    with tempfile.TemporaryDirectory() as place:
        path = Path(place) / environment.name
        path.write_text(request.text, encoding="utf-8")
        return _side("head", str(path), folder)


def _side(revision: str, environment: str, folder: Path | None) -> Side:
    from config.load import load
    from k8s import manifests
    from tests.stacks.assembly import synthesize

    with tempfile.TemporaryDirectory() as place:
        out = folder or Path(place)
        env = load(environment)
        synthesize(env, out)
        return synthesis.read(out, written=manifests.charts(env), facts=facts.facts(environment), revision=revision)


class _Source(importlib.machinery.SourceFileLoader):
    def __init__(self, name: str, path: str, text: str) -> None:
        super().__init__(name, path)
        self._text = text

    def get_code(self, fullname: str) -> Any:
        return compile(self._text, self.path, "exec", dont_inherit=True)


class _Finder(importlib.abc.MetaPathFinder):
    def __init__(self, name: str, text: str) -> None:
        self._name, self._text = name, text

    def find_spec(self, name: str, path: Sequence[str] | None, target: ModuleType | None = None) -> Any:
        if name != self._name:
            return None
        file = str(ROOT / f"{name.replace('.', '/')}.py")
        return importlib.util.spec_from_file_location(name, file, loader=_Source(name, file, self._text))


@contextlib.contextmanager
def _changed(name: str, text: str) -> Iterator[None]:
    """Within this, whoever imports our modules gets them with one of them changed."""
    kept = {key: module for key, module in sys.modules.items() if key.startswith(tuple(f"{part}." for part in OURS)) or key in OURS}
    finder = _Finder(name, text)
    for key in kept:
        del sys.modules[key]
    sys.meta_path.insert(0, finder)
    try:
        yield
    finally:
        sys.meta_path.remove(finder)
        for key in [key for key in sys.modules if key.startswith(tuple(f"{part}." for part in OURS)) or key in OURS]:
            del sys.modules[key]
        sys.modules.update(kept)
