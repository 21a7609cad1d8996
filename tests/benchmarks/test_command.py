"""The command that measures: which benchmarks it takes."""

from __future__ import annotations

import sys

import pytest

from benchmarks import __main__ as command


@pytest.mark.parametrize(("words", "ran"), [([], command.BENCHMARKS), (["synth", "upload"], ("synth", "upload"))], ids=["all", "some"])
def test_all_or_those_that_are_named(words: list[str], ran: tuple[str, ...], monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[str] = []

    class Benchmark:
        def __init__(self, name: str) -> None:
            self.name = name

        def run(self) -> list[str]:
            seen.append(self.name.removeprefix("benchmarks."))
            return ["too slow"] if self.name.endswith("upload") else []

    monkeypatch.setattr(command, "import_module", Benchmark)
    monkeypatch.setattr(sys, "argv", ["bench", *words])
    assert command.main() == 1, "a missed budget is said by the exit code"
    assert tuple(seen) == ran


def test_an_unknown_name_is_refused(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(sys, "argv", ["bench", "speed"])
    with pytest.raises(SystemExit, match="2"):
        command.main()
    assert "there is no benchmark speed; these are: startup" in capsys.readouterr().err
