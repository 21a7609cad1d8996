"""What one rule about a SkyRL configuration is."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

from config.problems import Problem
from training.skyrl_settings import Settings

Level = Literal["error", "warning"]


@dataclass(frozen=True)
class Rule:
    """One rule.

    Attributes:
        name: what tests and documents call it.
        field: the key that the problem is reported on.
        broken: whether the settings break it.
        sentence: what is wrong; `{s.batch}` and the like are filled in.
        fix: what would mend it; filled in the same way.
        level: `error` refuses, `warning` is only said.
    """

    name: str
    field: str
    broken: Callable[[Settings], bool]
    sentence: str
    fix: str
    level: Level = "error"

    def problem(self, settings: Settings) -> Problem | None:
        """What is wrong, or None if the settings keep the rule."""
        if not self.broken(settings):
            return None
        value = settings[self.field]
        sentence, fix = (text.format(s=settings) for text in (self.sentence, self.fix))
        return Problem(self.field, "null" if value is None else str(value), sentence, fix)
