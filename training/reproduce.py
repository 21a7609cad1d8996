"""What a run was submitted with, said again: the words after `--set`, the same specification, the commands on another machine."""

from __future__ import annotations

import contextlib
import json
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from shlex import quote
from typing import TYPE_CHECKING, Any, Final

from config import names
from config.load import ROOT, parse, path_of
from config.problems import Failed, Problem, Refused
from training import checkpoints, frameworks, layout, record, run, skyrl
from training.checkpoints import Origin
from training.skyrl_keys import Value

if TYPE_CHECKING:
    from config.environment import Environment
    from training.jobs import Attempt
    from training.record import Record

# The one derived value that may also be given: how many nodes train where rollouts have their own.
_INPUT: Final = "trainer.placement.policy_num_nodes"


@dataclass(frozen=True)
class Submitted:
    """What an attempt was submitted with, as its metadata or the run's record tells."""

    run_id: str
    attempt: int
    environment: str
    commit: str
    dirty: bool
    image: str
    specification: str
    overrides: Mapping[str, Value]
    origin: Origin | None = None


@dataclass(frozen=True)
class Change:
    """One thing that a specification has otherwise than what was submitted; None: not there."""

    key: str
    before: str | None
    after: str | None

    def document(self) -> dict[str, str | None]:
        """For programs."""
        return {"key": self.key, "before": self.before, "after": self.after}

    @property
    def lines(self) -> list[str]:
        """For people, as a diff shows it."""
        return [f"{sign} {self.key}={value}" for sign, value in (("-", self.before), ("+", self.after)) if value is not None]


@dataclass(frozen=True)
class Reproduction:
    """Commands to type, one a line, and what they cannot bring back."""

    run_id: str
    new_run_id: str
    commands: Sequence[str]
    remarks: Sequence[str] = field(default=())

    def document(self) -> dict[str, Any]:
        """For programs."""
        return {"run_id": self.run_id, "new_run_id": self.new_run_id, "commands": list(self.commands), "remarks": list(self.remarks)}


def submitted(run_id: str, *, attempts: Sequence[Attempt], record: Record | None) -> Submitted | None:
    """What the newest attempt was submitted with: as Ray tells, else as the record does; None if neither does.

    The checkpoint of another run that it began with may be told by an earlier attempt alone.
    """
    origin = _begun_with(attempts, record)
    for attempt in sorted(attempts, key=lambda each: each.number, reverse=True):
        told = attempt.metadata or {}
        try:
            overrides = json.loads(told.get("overrides", ""))
        except ValueError:
            continue
        if isinstance(overrides, dict) and told.get("specification"):
            return Submitted(
                run_id=run_id, attempt=attempt.number, environment=told.get("environment", ""), commit=told.get("commit", "unknown"),
                dirty=told.get("dirty") != "false", image=told.get("image", ""), specification=told["specification"], overrides=overrides,
                origin=origin,
            )  # fmt: skip
    if record is None or not record.specification:
        return None
    return Submitted(
        run_id=run_id, attempt=record.attempts[-1].number if record.attempts else 0, environment=record.environment,
        commit=record.code.commit, dirty=record.code.dirty, image=record.image.uri, specification=record.specification,
        overrides=record.overrides, origin=origin,
    )  # fmt: skip


def begun_with(env: Environment, run_id: str, *, attempts: Sequence[Attempt] = ()) -> Origin | None:
    """The checkpoint of another run that this run's earlier attempts began with: as Ray tells, else as the record here does.

    Raises Refused if the run has no checkpoint of its own yet, and that one is gone.
    """
    try:
        folder = record.folder_here(env, run_id)
    except Refused:  # no run has this id
        return None
    known = None
    with contextlib.suppress(Failed, OSError):  # a record that cannot be read keeps nobody from training
        known = record.read(folder) if folder is not None else None
    found = _begun_with(attempts, known)
    if found is None or (folder is not None and checkpoints.marked(folder / "checkpoints") is not None):
        return found
    return checkpoints.origin(env, str(found))


def _begun_with(attempts: Sequence[Attempt], record: Record | None) -> Origin | None:
    for attempt in sorted(attempts, key=lambda each: each.number, reverse=True):
        if (found := _origin((attempt.metadata or {}).get("from_run", ""))) is not None:
            return found
    return _origin(record.from_run or "") if record is not None else None


def _origin(text: str) -> Origin | None:
    run_id, _, step = text.partition("@")
    return Origin(run_id, int(step)) if step.isdigit() else None


def changes(what: Submitted, made: run.Specification) -> list[Change]:
    """Everything in which a specification differs from the submitted one, sorted by key; empty if nothing does."""
    if made.digest == what.specification:
        return []
    found = [
        Change(key, _text(what.overrides, key), _text(made.overrides, key))
        for key in sorted(what.overrides.keys() | made.overrides.keys())
        if what.overrides.get(key) != made.overrides.get(key)
    ]
    for name, before, after in (("image", what.image, made.image), ("from_run", _shown_origin(what.origin), _shown_origin(made.origin))):
        if before != after:
            found.append(Change(name, before or None, after or None))
    return found or [Change("entrypoint or its variables", what.specification, made.digest)]


def _text(values: Mapping[str, Value], key: str) -> str | None:
    return skyrl.render({key: values[key]})[0].partition("=")[2] if key in values else None


def _shown_origin(origin: Origin | None) -> str:
    return str(origin) if origin is not None else ""


def settings(env: Environment, what: Submitted) -> list[str]:
    """The words after `--set` that make the submitted settings of this environment's: SkyRL's `key=value`, sorted."""
    folder = layout.run_folder(env, what.run_id)
    _, base, _ = run.configuration(env, run_id=what.run_id)
    if (framework := frameworks.of(env)) is not None:
        given = {key: value for key, value in what.overrides.items() if key not in base or base[key] != value}
        return list(framework.command(env, folder, given).words)
    derived, _ = run.derive(env, folder=folder, run_id=what.run_id, values=what.overrides)
    apart = what.overrides.get("trainer.placement.colocate_all") is False
    follows = {key for key in derived if not (key == _INPUT and apart)}
    given = {key: value for key, value in what.overrides.items() if key not in follows and (key not in base or base[key] != value)}
    return skyrl.render(given)


def again(env: Environment, what: Submitted) -> run.Specification:
    """The specification that was submitted, made anew from the environment as it is now.

    Raises Refused if the environment has changed such that another one comes out, with every difference.
    """
    made, same = _made(env, what)
    if same:
        return made
    found = differences(env, made, what)
    raise Refused(
        Problem(f"environment {env.name}", "", difference, "put back what changed, or submit it as another run") for difference in found
    )


def _made(env: Environment, what: Submitted, code: run.Code | None = None) -> tuple[run.Specification, bool]:
    """The specification made anew, and whether it is what was submitted: a later attempt may not have named its run's beginning."""
    words = settings(env, what)
    made = run.specify(env, run_id=what.run_id, settings=words, code=code, origin=what.origin)
    if made.digest == what.specification or what.origin is None:
        return made, made.digest == what.specification
    return made, run.specify(env, run_id=what.run_id, settings=words, code=code).digest == what.specification


def differences(env: Environment, made: run.Specification, what: Submitted) -> list[str]:
    """In what a specification differs from the submitted one."""
    if env.name != what.environment:
        return [f"run {what.run_id} was submitted with environment {what.environment}"]
    found = [
        f"{key} was {_shown(what.overrides, key)} at attempt {what.attempt} and is {_shown(made.overrides, key)} now"
        for key in sorted(what.overrides.keys() | made.overrides.keys())
        if what.overrides.get(key) != made.overrides.get(key)
    ]
    if made.image != what.image:
        found.append(f"the image was {what.image} at attempt {what.attempt} and is {made.image} now")
    return found or [f"the entrypoint or its variables are not those of attempt {what.attempt}"]


def reproduce(what: Submitted, *, environment_name: str, new_run_id: str, root: Path = ROOT) -> Reproduction:
    """The exact commands that submit the same thing as another run.

    Args:
        environment_name: name or file of the environment that the run was submitted with.
        new_run_id: the run id of the reproduction; under the old one nothing would be trained again.

    Raises Refused if the commit was dirty or is unknown, or if this environment at that commit is not what was submitted.
    """
    names.check_run_id(new_run_id)
    if new_run_id == what.run_id:
        raise Refused(Problem("--as", new_run_id, "under the same run id the run would go on, not begin again", "choose another"))
    if what.commit == "unknown":
        raise Refused(Problem(f"run {what.run_id}", "", "it was submitted from outside of a git checkout, so its code is not known"))
    if what.dirty:
        rule = f"it was submitted from commit {what.commit[:12]} with uncommitted changes, which nobody can check out"
        raise Refused(Problem(f"run {what.run_id}", "", rule, "submit from a clean checkout to be able to reproduce"))
    env, word, remarks = _environment(what, environment_name, root)
    made, same = _made(env, what, run.Code(what.commit, dirty=False))
    if not same:
        raise Refused(Problem(f"environment {word}", "", difference, "name the environment file of the run with --env")
                      for difference in differences(env, made, what))  # fmt: skip
    given = " ".join(f"--set {quote(setting)}" for setting in settings(env, what))
    commands = (
        f"git checkout {what.commit}",
        "make setup",
        f"export HYPERPOD_RL_ENV={quote(word)}",
        f"hyperpod-rl submit --run-id {new_run_id}{f' --from-run {what.origin}' if what.origin else ''}{' ' + given if given else ''}",
    )
    return Reproduction(what.run_id, new_run_id, commands, (*remarks, *_remarks(env, what)))


def _environment(what: Submitted, name: str, root: Path) -> tuple[Environment, str, list[str]]:
    """The environment at the run's commit: its file there, or a file outside of the repository, which no checkout changes."""
    path = path_of(name).resolve()
    if not path.is_relative_to(root):
        return parse(path.read_text(encoding="utf-8")), str(path), [f"{path} is outside of the repository: keep it as it is"]
    relative = path.relative_to(root).as_posix()
    shown = subprocess.run(("git", "-C", str(root), "show", f"{what.commit}:{relative}"), capture_output=True, text=True, timeout=30)
    if shown.returncode == 0:
        return parse(shown.stdout), name if "/" not in name else relative, []
    known = subprocess.run(("git", "-C", str(root), "cat-file", "-e", f"{what.commit}^{{commit}}"), capture_output=True, timeout=30)
    if known.returncode != 0:
        raise Refused(Problem("commit", what.commit, "this checkout does not have it", "git fetch --all"))
    return parse(path.read_text(encoding="utf-8")), relative, [f"{relative} is not in commit {what.commit[:12]}: keep it as it is"]


def _remarks(env: Environment, what: Submitted) -> list[str]:
    found = []
    if "@sha256:" not in what.image:
        found.append(f"the image was named by a tag ({what.image}), which may have been moved since")
    revision = env.training.base_model_revision
    if env.training.base_model_repository and not _is_commit(revision):
        found.append(f"the base model's revision is {revision}, no commit: its weights may have changed since")
    found.append("SkyRL does not fix every random draw, so the numbers will be near and not the same")
    return found


def _is_commit(revision: str) -> bool:
    return len(revision) == 40 and all(character in "0123456789abcdef" for character in revision)


def _shown(values: Mapping[str, Any], key: str) -> str:
    return json.dumps(values[key], ensure_ascii=False) if key in values else "not set"
