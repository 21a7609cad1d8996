"""What preflight says: findings of rules, each an object, and the arithmetic behind them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from config import base_models
from config.base_models import BaseModel
from config.environment import Environment
from config.problems import Problem, Refused, without_password
from training.checkpoints import Origin
from training.skyrl_keys import Value
from training.skyrl_rule import Level
from training.skyrl_settings import Settings


@dataclass(frozen=True)
class Finding:
    """A broken rule. `inferred`: the rule rests on figures that nobody has measured."""

    name: str
    level: Level
    problem: Problem
    inferred: bool = False

    @property
    def sentence(self) -> str:
        """For people, on one line."""
        return f"{self.level} [{self.name}{', inferred' if self.inferred else ''}] {self.problem}"

    def document(self) -> dict[str, Any]:
        """For programs."""
        said = self.problem
        parts = {"field": said.field, "value": said.value, "problem": said.rule, "fix": said.fix}
        shown = {name: without_password(text) for name, text in parts.items()}
        return {"rule": self.name, "level": self.level, "inferred": self.inferred, **shown, "message": str(said)}


@dataclass(frozen=True)
class Subject:
    """What the rules look at: an environment and the whole SkyRL configuration of a run."""

    environment: Environment
    values: Mapping[str, Value]
    run_id: str = "RUN-ID"
    origin: Origin | None = None

    @cached_property
    def settings(self) -> Settings:
        """The configuration with SkyRL's defaults."""
        return Settings(self.values, world_gpus=self.environment.training_gpus, environment=None)

    @cached_property
    def model(self) -> BaseModel | None:
        """Size of the base model, where it is known."""
        return base_models.of(self.environment)

    @property
    def gpus(self) -> int:
        """GPUs that the run reserves: another trainer than SkyRL takes all."""
        skyrl = self.environment.training.framework == "skyrl"
        return self.settings.gpus if skyrl else self.environment.training_gpus

    @property
    def gpu_gib(self) -> float:
        """Memory of one GPU of the workers, in GiB."""
        return self.environment.workers.instance.gpu_memory_gib

    @property
    def gpu(self) -> str:
        """The GPU in words."""
        instance = self.environment.workers.instance
        return f"a GPU of {instance.name} ({instance.gpu or 'GPU'}) has {instance.gpu_memory_gib:.1f} GiB"


@dataclass(frozen=True)
class Rule:
    """One rule of preflight: yields what is wrong with a subject."""

    name: str
    level: Level
    check: Callable[[Subject], Iterator[Problem]]
    inferred: bool = False

    def findings(self, subject: Subject) -> list[Finding]:
        """What the subject breaks of it."""
        return [Finding(self.name, self.level, problem, self.inferred) for problem in self.check(subject)]


@dataclass(frozen=True)
class Report:
    """Everything that was looked at."""

    findings: Sequence[Finding] = ()
    arithmetic: Mapping[str, str] = field(default_factory=dict)
    checked: Sequence[str] = ()

    @property
    def errors(self) -> list[Finding]:
        """What refuses the run."""
        return [found for found in self.findings if found.level == "error"]

    @property
    def warnings(self) -> list[Finding]:
        """What is only said."""
        return [found for found in self.findings if found.level == "warning"]

    def refuse(self) -> None:
        """Raises Refused with every error, if there is one."""
        if self.errors:
            raise Refused([found.problem for found in self.errors])

    def and_also(self, other: Report) -> Report:
        """Both."""
        return Report((*self.findings, *other.findings), {**self.arithmetic, **other.arithmetic}, (*self.checked, *other.checked))

    def document(self) -> dict[str, Any]:
        """For programs."""
        return {
            "passed": not self.errors,
            "findings": [found.document() for found in self.findings],
            "arithmetic": dict(self.arithmetic),
            "checked": [without_password(what) for what in self.checked],
        }
