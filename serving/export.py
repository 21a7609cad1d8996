"""Is an export what the endpoint can serve, and what the run says it is? Every check at once, before a byte is uploaded.

What goes wrong otherwise goes wrong silently: vLLM ignores adapters of the vision tower, a rank above the server's is refused on
the GPU, weights that are zero or not numbers answer like the base model or like nothing.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from config import base_models, names
from config.problems import Problem, Refused, Unreachable
from config.serve_rules import server_rank
from serving.releases import File, content_digest
from serving.tensors import Shape, Unreadable, look

if TYPE_CHECKING:
    from config.environment import Environment
    from training.record import Record

MARKER: Final = "config.json"  # SkyRL renames a finished export into place, so this file says that it is whole
STAND_IN: Final = "stand_in"  # what the local stand-in trainer marks its files with
IGNORED: Final = ("visual.", "vision_tower.", "vision_model.")
_RANK, _ALPHA = "trainer.policy.model.lora.rank", "trainer.policy.model.lora.alpha"
_LARGEST_CONFIG: Final = 1 << 20
_SPARE: Final = 1.1  # of the size that the parameters ask for: header, alignment
_LARGEST: Final = 20 << 30
_PREFIX: Final = "base_model.model."
_SIDES: Final = ("lora_A", "lora_B")


Stamp = tuple[tuple[int, int, int], ...]
"""Size, time of change and inode of the files: another stamp, other bytes."""


@dataclass(frozen=True)
class Export:
    """An export that passed every check. `digest` is over names and bytes of the two files that a release holds."""

    folder: Path
    step: int
    files: tuple[File, ...]
    digest: str
    rank: int
    alpha: float
    base_path: str
    base_commit: str | None
    stand_in: bool
    stamp: Stamp = ()


class AdapterConfig(BaseModel):
    """What is read of PEFT's adapter_config.json; the rest is passed over."""

    model_config = ConfigDict(frozen=True, extra="ignore", strict=True)

    r: int
    lora_alpha: Annotated[float, Field(allow_inf_nan=False, gt=0)]
    base_model_name_or_path: str | None = None
    peft_type: str | None = None
    rank_pattern: dict[str, int] | None = None
    alpha_pattern: dict[str, float] | None = None
    use_dora: bool | None = None
    bias: str | None = None
    modules_to_save: list[str] | None = None

    @property
    def ranks(self) -> set[int]:
        """Every rank that it names."""
        return {self.r, *(self.rank_pattern or {}).values()}


@dataclass(frozen=True)
class _Side:
    module: str
    side: str


def checked(env: Environment, record: Record, step: int) -> Export:
    """Look at the export of a step of a run. Raises Refused with every problem."""
    folder = find(env, record.run_id, step)
    field = f"export of step {step}"
    config = _config(folder, field)
    weights = folder / names.ADAPTER_WEIGHTS
    found: list[Problem] = [*_settings(env, record, config, field), *_base(env, record, config, field)]
    before = stamp(folder)
    try:
        tensors = look(weights)
    except Unreadable as error:
        found.append(Problem(f"{field} {names.ADAPTER_WEIGHTS}", "", str(error), "export the step again, or choose another one"))
    else:
        found += [*_tensors(tensors, config, field), *_size(env, weights.stat().st_size, config, field)]
    files = tuple(describe(folder / name) for name in (names.ADAPTER_WEIGHTS, names.ADAPTER_CONFIG))
    if stamp(folder) != before:
        found.append(Problem(field, str(folder), "it changed while it was read: it is still being written", "wait, then try again"))
    if found:
        raise Refused(found)
    return Export(
        folder=folder, step=step, files=files, digest=content_digest(files), rank=config.r, alpha=config.lora_alpha,
        base_path=str(config.base_model_name_or_path), base_commit=_commit(env), stand_in=is_stand_in(folder),
        stamp=before,
    )  # fmt: skip


def find(env: Environment, run_id: str, step: int) -> Path:
    """The export's folder on this machine. Raises Refused where it is not there or not whole, Unreachable without /shared."""
    from training import record as records

    root = records.folder_here(env, run_id)
    if root is None:
        raise Unreachable(
            f"the shared file system of environment {env.name} is not visible here (HYPERPOD_RL_SHARED), so exports cannot be read"
        )
    step_folder = root / "exports" / f"global_step_{step}"
    folder = step_folder / "policy"
    needed = (MARKER, names.ADAPTER_CONFIG, names.ADAPTER_WEIGHTS)
    missing = [name for name in needed if not (folder / name).is_file()]
    if not missing:
        return folder
    field = f"export of step {step}"
    if _being_written(step_folder):
        rule = "it is still being written: SkyRL renames it into place when it is whole"
        raise Refused(Problem(field, str(folder), rule, "wait, then try again"))
    if folder.is_dir():
        raise Refused(Problem(field, str(folder), f"it is not whole: {', '.join(missing)} is missing", "export the step again"))
    there = ", ".join(str(number) for number in steps(root)) or "none"
    raise Refused(Problem(field, "", f"run {run_id} has no export of this step", f"its exports are of step {there}"))


def digest_of(env: Environment, run_id: str, step: int) -> str | None:
    """Digest of an export's bytes; None where it is not there, not whole, or not visible from here."""
    try:
        folder = find(env, run_id, step)
        return content_digest([describe(folder / name) for name in (names.ADAPTER_WEIGHTS, names.ADAPTER_CONFIG)])
    except (Refused, Unreachable, OSError):
        return None


def steps(root: Path) -> list[int]:
    """Steps of a run whose exports are whole."""
    from training.checkpoints import step_folders

    return [step for step, place in step_folders(root / "exports") if (place / "policy" / MARKER).is_file()]


def is_stand_in(folder: Path) -> bool:
    """Whether the local stand-in trainer wrote it, not SkyRL."""
    for name in (MARKER, names.ADAPTER_CONFIG):
        try:
            if STAND_IN in json.loads((folder / name).read_bytes()):
                return True
        except (OSError, ValueError, TypeError, RecursionError):
            continue
    return False


def _being_written(step_folder: Path) -> bool:
    for folder in (step_folder.parent, step_folder):
        if folder.is_dir() and any(path.name.startswith(".tmp-") for path in folder.iterdir()):
            return True
    return False


def _config(folder: Path, field: str) -> AdapterConfig:
    path, told = folder / names.ADAPTER_CONFIG, f"{field} {names.ADAPTER_CONFIG}"
    fix = "export the step again"
    if path.stat().st_size > _LARGEST_CONFIG:
        raise Refused(Problem(told, "", "it is larger than 1 MiB", fix))
    try:
        return AdapterConfig.model_validate_json(path.read_bytes())
    except ValidationError as error:
        raise Refused(
            [Problem(" ".join((told, *map(str, each["loc"]))), "", f"it cannot be read: {each['msg']}", fix) for each in error.errors()]
        ) from None


def _settings(env: Environment, record: Record, config: AdapterConfig, field: str) -> Iterator[Problem]:
    """adapter_config.json against the record, and against what vLLM serves (vllm/lora/peft_helper.py)."""
    told = f"{field} {names.ADAPTER_CONFIG}"
    for key, setting in ((_RANK, "r"), (_ALPHA, "lora_alpha")):
        wanted = record.overrides.get(key)
        found = getattr(config, setting)
        if wanted is not None and found != wanted:
            yield Problem(f"{told} {setting}", f"{found:g}", f"the run's record says {key}={wanted}", "this is not that run's export")
    highest = max(config.ranks)
    served = server_rank(env)
    if not 0 < highest <= served:
        fix = f"serve with trainer.policy.model.lora.rank of at least {highest} in the environment, or train with less"
        yield Problem(f"{told} r", str(highest), f"the endpoint holds adapters of rank 1 to {served} (max_lora_rank)", fix)
    if config.peft_type != "LORA":
        yield Problem(f"{told} peft_type", str(config.peft_type), "the endpoint serves LoRA adapters only", "train with LoRA")
    for setting, usual in (("rank_pattern", config.r), ("alpha_pattern", config.lora_alpha)):
        others = {name: value for name, value in (getattr(config, setting) or {}).items() if value != usual}
        if others:
            rule = "vLLM scales every module by lora_alpha / r, so another policy than the trained one would answer"
            yield Problem(f"{told} {setting}", str(others), rule, "train every module with one rank and one alpha")
    for setting, harmless in (("use_dora", (None, False)), ("bias", (None, "none")), ("modules_to_save", (None, []))):
        if (value := getattr(config, setting)) not in harmless:
            yield Problem(f"{told} {setting}", str(value), "vLLM does not serve this kind of adapter", "train without it")


def _base(env: Environment, record: Record, config: AdapterConfig, field: str) -> Iterator[Problem]:
    """The base model that was trained on must be the one that is served: same folder, same revision."""
    told, training = f"{field} {names.ADAPTER_CONFIG}", env.training
    path = config.base_model_name_or_path
    if path != training.base_model:
        yield Problem(
            f"{told} base_model_name_or_path", str(path), f"the endpoint serves {training.base_model}", "serve the model it was trained on"
        )
    served = (training.base_model_repository, training.base_model_subfolder, training.base_model_revision)
    trained = (record.model.repository, record.model.subfolder, record.model.revision)
    if not record.model.path:
        rule = f"the run's record does not say what it was trained on, and the endpoint serves {_named(served)}"
        fix = f"hyperpod-rl report {record.run_id}, where the Ray cluster still knows the run, writes it down"
        yield Problem(f"{field} base model", "", rule, fix)
    elif trained != served:
        yield Problem(
            f"{field} base model", "@".join((trained[0] or trained[1], trained[2])),
            f"it was trained on {_named(trained)}, and the endpoint serves {_named(served)}",
            "set training.base_model_revision to the one that it was trained on",
        )  # fmt: skip
    commit, revision = _commit(env), training.base_model_revision
    if commit is not None and len(revision) == 40 and commit != revision:
        yield Problem(
            "training.base_model_revision",
            revision,
            f"{training.base_model} holds commit {commit}",
            "bring that revision there, or name it",
        )


def _named(model: tuple[str, str, str]) -> str:
    repository, subfolder, revision = model
    return f"{repository or 'a model without a repository'}{'/' + subfolder if subfolder else ''} at {revision or 'no revision'}"


def _commit(env: Environment) -> str | None:
    """The commit of the base model on the shared file system, where its marker tells one (k8s/fetch_model.py)."""
    from training import layout
    from training.base_model import MARKER as WHOLE

    here = layout.here(env, env.training.base_model)
    try:
        found = json.loads((here / WHOLE).read_bytes()) if here is not None else {}
        commit = found.get("commit") if isinstance(found, dict) else None
    except (OSError, ValueError, RecursionError):
        return None
    return commit if isinstance(commit, str) else None


def _tensors(tensors: Mapping[str, Shape], config: AdapterConfig, field: str) -> Iterator[Problem]:
    told = f"{field} {names.ADAPTER_WEIGHTS}"
    sides: dict[str, dict[str, Shape]] = {}
    unknown, ignored, broken = [], [], []
    for name, shape in tensors.items():
        side = _side(name)
        if side is None:
            unknown.append(name)
            continue
        sides.setdefault(side.module, {})[side.side] = shape
        if any(part in f"{side.module}." for part in IGNORED):
            ignored.append(name)
        if not shape.finite:
            broken.append(name)
    if unknown:
        yield Problem(told, _some(unknown), "these are no LoRA weights that vLLM knows", "export the adapter alone")
    if ignored:
        fix = "train with trainer.policy.model.lora.exclude_modules='.*visual.*'"
        yield Problem(told, _some(ignored), "vLLM ignores adapters of the vision tower, so another policy would answer", fix)
    if broken:
        yield Problem(
            told, _some(broken), "these weights are not finite numbers (NaN or infinity)", "the training diverged: choose an earlier step"
        )
    halves = sorted(module for module, its in sides.items() if set(its) != set(_SIDES))
    if halves:
        yield Problem(told, _some(halves), "these modules have one half of an adapter only", "export the step again")
    yield from _ranks(sides, config, told)
    whole = [its for its in sides.values() if set(its) == set(_SIDES)]
    if not sides or (whole and not any(its["lora_A"].nonzero and its["lora_B"].nonzero for its in whole)):
        yield Problem(told, "", "every weight of one half is zero, so the adapter changes nothing", "choose a step after some training")


def _ranks(sides: Mapping[str, Mapping[str, Shape]], config: AdapterConfig, told: str) -> Iterator[Problem]:
    stated = config.ranks
    wrong = []
    for module, its in sides.items():
        ranks = {
            its[side].dimensions[axis] for side, axis in (("lora_A", 0), ("lora_B", -1)) if side in its and len(its[side].dimensions) == 2
        }
        flat = any(len(shape.dimensions) != 2 for shape in its.values())
        if flat or len(ranks) != 1 or not ranks <= stated:
            wrong.append(f"{module} ({', '.join(str(shape.dimensions) for shape in its.values())})")
    if wrong:
        yield Problem(
            told, _some(wrong), f"their shapes do not have the rank {config.r} of {names.ADAPTER_CONFIG}", "export the step again"
        )


def _size(env: Environment, size: int, config: AdapterConfig, field: str) -> Iterator[Problem]:
    """At most what every linear layer of the language model at this rank takes in fp32."""
    model = base_models.of(env)
    most = int(_SPARE * 4 * model.adapter_parameters(config.r)) + (1 << 20) if model is not None else _LARGEST
    if size > most:
        of = f" of {model.name} at rank {config.r}" if model is not None else ""
        yield Problem(f"{field} {names.ADAPTER_WEIGHTS}", f"{size / 1e9:.2f} GB", f"an adapter{of} has at most {most / 1e9:.2f} GB",
                      "export the adapter alone, not the whole model")  # fmt: skip


def _side(name: str) -> _Side | None:
    """`base_model.model.<module>.lora_A[.default].weight` -> module and side."""
    if not name.startswith(_PREFIX) or not name.endswith(".weight"):
        return None
    parts = name.removeprefix(_PREFIX).removesuffix(".weight").removesuffix(".default").split(".")
    return _Side(".".join(parts[:-1]), parts[-1]) if len(parts) > 1 and parts[-1] in _SIDES else None


def _some(found: list[str]) -> str:
    return f"{found[0]}" + (f" and {len(found) - 1} more" if len(found) > 1 else "")


def stamp(folder: Path) -> Stamp:
    """What tells whether an export was changed since. Raises OSError."""
    stats = [(folder / name).stat() for name in (names.ADAPTER_WEIGHTS, names.ADAPTER_CONFIG, MARKER)]
    return tuple((stat.st_size, stat.st_mtime_ns, stat.st_ino) for stat in stats)


def describe(path: Path) -> File:
    """Name, size and SHA-256 of a file. Raises OSError."""
    with path.open("rb") as opened:
        digest = hashlib.file_digest(opened, "sha256").hexdigest()
    return File(name=path.name, size_bytes=path.stat().st_size, sha256=digest)
