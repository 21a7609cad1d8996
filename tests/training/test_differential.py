"""Whatever SkyRL's own `validate_cfg` refuses, training/skyrl.py refuses; what only it refuses stands on a written list."""

from __future__ import annotations

import json
import subprocess
import sys
from collections import Counter
from functools import cache

import pytest

from config.load import ROOT
from tests.training.skyrl_configurations import configurations
from tools import skyrl_reference
from training import skyrl, skyrl_rules
from training.skyrl_own_rules import OWN_RULES

COUNT, SEED = 6_000, 20261129


def _skyrl(version: str, cases: list[list[str]]) -> list[str | None]:
    folder = skyrl_reference.folder(version)
    if not (folder / ".installed").exists():
        pytest.fail(f"SkyRL {version} is not in {folder}: run `make setup`, which installs it (python -m tools.skyrl_reference)")
    done = subprocess.run(
        [sys.executable, str(ROOT / "tests/training/skyrl_verdicts.py")],
        input="".join(json.dumps(case) + "\n" for case in cases), capture_output=True, text=True, timeout=600,
        env={"PYTHONPATH": str(folder), "RAY_DISABLE_IMPORT_WARNING": "1"}, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    verdicts = [json.loads(line) for line in done.stdout.splitlines()]
    assert len(verdicts) == len(cases)
    return verdicts


def _ours(case: list[str]) -> list[str]:
    """Names of the rules that refuse a configuration."""
    values, unread = skyrl.parse(case)
    return ["parse"] if unread else [found.name for found in skyrl_rules.findings(values, environment=()) if found.level == "error"]


@cache
def _compared(version: str) -> list[tuple[list[str], str | None, list[str]]]:
    cases = list(configurations(COUNT, seed=SEED))
    return [(case, theirs, _ours(case)) for case, theirs in zip(cases, _skyrl(version, cases), strict=True)]


def _listed(name: str) -> str:
    return "range:" if name.startswith("range:") else name


@pytest.mark.parametrize("version", skyrl_reference.VERSIONS)
def test_what_skyrl_refuses_is_refused_here(version: str) -> None:
    compared = _compared(version)
    assert len(compared) >= 5_000
    missed = [(theirs, case) for case, theirs, ours in compared if theirs is not None and not ours]
    assert missed == [], f"{len(missed)} of {len(compared)}; the first: {missed[0]}"
    # The comparison says something: both verdicts are common, and SkyRL's refusals are of many kinds.
    refusals = Counter(theirs.split("(")[0][:60] for _, theirs, _ in compared if theirs is not None)
    assert sum(refusals.values()) > 800
    assert len(refusals) > 40
    assert sum(1 for _, theirs, ours in compared if theirs is None and not ours) > 2_000


@pytest.mark.parametrize("version", skyrl_reference.VERSIONS)
def test_what_only_we_refuse_is_on_the_list(version: str) -> None:
    compared = _compared(version)
    ours_alone = {_listed(name) for _, theirs, ours in compared if theirs is None for name in ours}
    needs_a_cluster = {"cluster-has-the-gpus"}
    assert ours_alone == set(OWN_RULES) - needs_a_cluster


def test_the_same_seed_gives_the_same_configurations() -> None:
    assert list(configurations(50, seed=1)) == list(configurations(50, seed=1))
    assert list(configurations(50, seed=1)) != list(configurations(50, seed=2))
