"""The environment's own server command for an export."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from config.load import load
from config.problems import Failed, Refused
from serving import candidate

ENV = load("local")


def served_by(template: str | None) -> Any:
    serving = ENV.serving.model_copy(update={"gate": ENV.serving.gate.model_copy(update={"server": template})})
    return ENV.model_copy(update={"serving": serving})


def test_the_environments_server_is_filled_in() -> None:
    words = candidate.command(load("reference"), base=Path("/b c"), export=Path("/e"), port=7)
    assert words[:3] == ["vllm", "serve", "/b c"]
    assert "candidate=/e" in words
    assert words[words.index("--max-lora-rank") + 1] == "32"


@pytest.mark.parametrize(
    ("template", "said"),
    [(None, "names no server"), ("", "is empty"), ("vllm {model}", "cannot be filled in"), ("vllm '{base}", "cannot be filled in")],
)
def test_a_server_that_cannot_be_run_is_refused(template: str | None, said: str) -> None:
    with pytest.raises(Refused, match=said):
        candidate.command(served_by(template), base=Path("b"), export=Path("e"), port=1)


def test_a_server_that_ends_or_is_missing_is_said(tmp_path: Path) -> None:
    log = tmp_path / "log"
    broken = served_by("python -c \"import sys; print('no GPU here'); sys.exit(3)\"")
    with pytest.raises(Failed, match="ended with code 3: no GPU here"), candidate.served(broken, base=tmp_path, export=tmp_path, log=log):
        pass
    with (
        pytest.raises(Refused, match=r"cannot be started .*run the gate where it is installed"),
        candidate.served(served_by("no-such-program"), base=tmp_path, export=tmp_path, log=log),
    ):
        pass
    slow = served_by('python -c "import time; time.sleep(60)"')
    with pytest.raises(Failed, match="did not answer"), candidate.served(slow, base=tmp_path, export=tmp_path, log=log, seconds=0.1):
        pass
