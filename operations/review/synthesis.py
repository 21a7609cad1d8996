"""Both sides of a review, made as a user makes them: `cdk synth` in a folder of each revision, at the same time.

The base is written out of git into a temporary folder (`git archive`, not `git worktree`: nothing is registered in the repository,
so nothing is left in it when a review is killed, and two reviews do not meet). The head is this checkout as it stands on disk. Both run
with the libraries that are installed here.
"""

from __future__ import annotations

import io
import json
import os
import subprocess
import sys
import tarfile
import tempfile
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from config.load import ROOT
from config.problems import Failed, Problem, Refused, Unreachable
from operations.review.sides import Side, StackTemplate, objects

FACTS = Path(__file__).with_name("facts.py")
REQUIREMENTS = ("requirements.txt", "package-lock.json")
TIMEOUT_SECONDS = 600
HEAD = "this checkout"
# Of the local cloud (config/rules.py holds every environment to that): a change there costs nobody anything.
LOCAL = "local"
# No credentials: the code under review needs none, and could be anybody's. Python's safe path would take the installed modules, which are
# this checkout's, for the base's as well.
_KEPT_BACK = ("AWS_", "GITHUB_TOKEN", "GH_TOKEN", "ACTIONS_", "PYTHONSAFEPATH")


class Broken(Failed):
    """A revision that cannot be synthesized. `side` is `base` or `head`, `said` what it said."""

    def __init__(self, message: str, *, side: str, said: str) -> None:
        super().__init__(message)
        self.side, self.said = side, said


def commit(revision: str, *, root: Path = ROOT) -> str:
    """Full commit id of a revision. Raises Refused if there is none."""
    here = _git(root, "rev-parse", "--git-dir")
    if here.returncode:
        said = " ".join(here.stderr.decode(errors="replace").split()).removeprefix("fatal: ")
        raise Refused(Problem("--base", revision, f"git does not know this checkout ({said})", "run it in a clone of the project"))
    done = _git(root, "rev-parse", "--verify", "--quiet", "--end-of-options", f"{revision}^{{commit}}")
    if done.returncode:
        raise Refused(Problem("--base", revision, "git knows no such revision", "git fetch it, or name another one"))
    return done.stdout.decode().strip()


def default_base(*, root: Path = ROOT) -> str:
    """Where this branch left the main one; the last commit where there is no other branch. Raises Refused outside of a repository."""
    for main in ("origin/HEAD", "origin/main", "main"):
        done = _git(root, "merge-base", "HEAD", main)
        if not done.returncode:
            return done.stdout.decode().strip()
    head = commit("HEAD", root=root)
    if _git(root, "rev-parse", "--is-shallow-repository").stdout.strip() == b"true":
        rule = "this clone is shallow and does not hold where the branch left the main one"
        raise Refused(Problem("--base", "", rule, "git fetch --unshallow origin main, or name a base"))
    return head


def environments(base: str, *, root: Path = ROOT) -> list[str]:
    """Names of all environments that the base or this checkout has, but the local cloud's."""
    listed = _git(root, "ls-tree", "-z", "--name-only", base, "environments/").stdout.decode(errors="surrogateescape").split("\0")
    here = [path.name for path in (root / "environments").glob("*.yaml")]
    found = {Path(name).stem for name in (*listed, *here) if name.endswith(".yaml")}
    return sorted(name for name in found if not name.startswith(LOCAL))


def sides(environment: str, base: str, *, root: Path = ROOT, keep: Path | None = None) -> tuple[Side, Side, tuple[str, ...]]:
    """Synthesize an environment (a name or a file) at a commit and in this checkout.

    Returns base, head and remarks. `keep`: folder that receives the head's assembly. Raises Broken with what a synthesis said,
    Refused for an environment that neither has.
    """
    with tempfile.TemporaryDirectory(prefix="hyperpod-rl-review-") as folder:
        older = Path(folder) / "base"
        _extract(base, older, root=root)
        here, there = _inside(environment, root)
        heads = keep or Path(folder) / "head.out"
        tasks = [
            (older, there, Path(folder) / "base.out", base[:10]),
            (root, here, heads, HEAD),
        ]
        if not _has(older, there) and not _has(root, here):
            raise Refused(Problem("environment", environment, "neither the base nor this checkout has it", "see environments/"))
        with ThreadPoolExecutor(max_workers=4) as pool:
            made = [_begin(pool, place, name, out, revision) for place, name, out, revision in tasks]
            one, two = (each() for each in made)
        remarks = [
            f"{name} differs: both sides were synthesized with the libraries installed here"
            for name in REQUIREMENTS
            if _bytes(older / name) != _bytes(root / name)
        ]
        return one, two, tuple(remarks)


def _begin(pool: ThreadPoolExecutor, place: Path, name: str, out: Path, revision: str) -> Any:
    """Start a side; calling the result waits for it."""
    if not _has(place, name):
        return lambda: Side(revision)
    synth = pool.submit(_synthesize, place, name, out, revision)
    said = pool.submit(_facts, place, name, revision)
    return lambda: _side(place, out, revision, facts=said.result(), after=synth.result())


def read(out: Path, *, written: Mapping[str, Sequence[Any]], facts: Mapping[str, Any], revision: str) -> Side:
    """A side from an assembly on disk and the manifests that were written beside it."""
    artifacts = json.loads((out / "manifest.json").read_text(encoding="utf-8"))["artifacts"]
    stacks = tuple(
        StackTemplate(
            name=name,
            stack_name=str(artifact["properties"].get("stackName", name)),
            place=str(artifact.get("environment", "")),
            template=json.loads((out / artifact["properties"]["templateFile"]).read_text(encoding="utf-8")),
            protected=bool(artifact["properties"].get("terminationProtection")),
            tags=artifact["properties"].get("tags", {}),
        )
        for name, artifact in artifacts.items()
        if artifact.get("type") == "aws:cloudformation:stack"
    )
    return Side(revision, stacks, objects(stacks, written), facts)


def _side(place: Path, out: Path, revision: str, *, facts: Mapping[str, Any], after: None) -> Side:
    folder = place / "dist" / str(facts["environment"]["name"])
    return read(out, written=_written(folder), facts=facts, revision=revision)


def _written(folder: Path) -> dict[str, list[Any]]:
    import yaml

    loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
    return {
        chart.name: [yaml.load(path.read_bytes(), Loader=loader) for path in sorted(chart.glob("*.yaml"))]  # noqa: S506 - a safe loader
        for chart in sorted(folder.glob("*"))
        if chart.is_dir()
    }


def _synthesize(place: Path, name: str, out: Path, revision: str) -> None:
    command = ["cdk", "synth", "--quiet", "-c", f"env={name}", "-o", str(out)]
    done = _run(command, place)
    if done.returncode:
        said = _last(done.stdout, done.stderr)
        raise Broken(f"{name} cannot be synthesized at {revision}: {said}", side=_which(revision), said=said)


def _facts(place: Path, name: str, revision: str) -> dict[str, Any]:
    # Its text, not its file: a script's own folder would come first among the places that modules are looked for in.
    done = _run([sys.executable, "-c", FACTS.read_text(encoding="utf-8"), name], place)
    if done.returncode:
        said = _last(done.stdout, done.stderr)
        raise Broken(f"environment {name} cannot be read at {revision}: {said}", side=_which(revision), said=said)
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def _which(revision: str) -> str:
    return "head" if revision == HEAD else "base"


def _run(command: Sequence[str], place: Path) -> subprocess.CompletedProcess[str]:
    silent = dict.fromkeys(("JSII_SILENCE_WARNING_DEPRECATED_NODE_VERSION", "JSII_SILENCE_WARNING_UNTESTED_NODE_VERSION"), "1")
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ.get('PATH', '')}"
    variables = {name: value for name, value in os.environ.items() if not name.startswith(_KEPT_BACK)}
    variables |= silent | {"PATH": path, "PYTHONDONTWRITEBYTECODE": "1", "AWS_EC2_METADATA_DISABLED": "true"}
    try:
        return subprocess.run(
            command,
            cwd=place,
            env=variables,
            capture_output=True,
            text=True,
            timeout=TIMEOUT_SECONDS,
            check=False,
            stdin=subprocess.DEVNULL,
        )
    except FileNotFoundError:
        raise Unreachable(f"{command[0]} is not there: run `make setup`, then `source .venv/bin/activate`") from None
    except subprocess.TimeoutExpired:
        raise Failed(f"{' '.join(command[:2])} took longer than {TIMEOUT_SECONDS} s") from None


def _last(*texts: str) -> str:
    lines = [line.strip() for text in texts for line in text.splitlines() if line.strip()]
    said = [line for line in lines if "Traceback" not in line and not line.startswith(("File ", "at ", "^", "~"))]
    return " / ".join(said[-6:])[:1200] or "it said nothing"


def _inside(environment: str, root: Path) -> tuple[str, str]:
    """What the environment is called here and in the base: a file of this project is that revision's own file."""
    if "/" not in environment and not environment.endswith((".yaml", ".yml")):
        return environment, environment
    path = Path(environment).expanduser().resolve()
    if path.is_relative_to(root):
        return str(path), f"./{path.relative_to(root)}"
    return str(path), str(path)


def _has(place: Path, name: str) -> bool:
    if "/" in name or name.endswith((".yaml", ".yml")):
        return (place / name).is_file()
    return (place / "environments" / f"{name}.yaml").is_file()


def _bytes(path: Path) -> bytes:
    return path.read_bytes() if path.is_file() else b""


def _extract(base: str, into: Path, *, root: Path) -> None:
    done = _git(root, "archive", "--format=tar", base)
    if done.returncode:
        raise Failed(f"git cannot write out {base[:10]}: {done.stderr.decode(errors='replace').strip()}")
    with tarfile.open(fileobj=io.BytesIO(done.stdout)) as archive:
        # What it holds is run anyway; nothing lands outside. Pythons before 3.11.4 know no filter.
        safely: dict[str, Any] = {"filter": "tar"} if hasattr(tarfile, "tar_filter") else {}
        archive.extractall(into, **safely)  # noqa: S202


def _git(root: Path, *words: str) -> subprocess.CompletedProcess[bytes]:
    try:
        return subprocess.run(("git", "-C", str(root), *words), capture_output=True, check=False, timeout=120, stdin=subprocess.DEVNULL)
    except FileNotFoundError:
        raise Unreachable("git is not there, and the base comes out of it") from None
