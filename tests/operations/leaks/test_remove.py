"""Removing in rounds: what does not go yet is tried again, what is gone already is no failure."""

from __future__ import annotations

import subprocess

from operations.leaks.leak import Leak
from operations.leaks.remove import ROUNDS, remove


def _leak(name: str, *commands: str) -> Leak:
    return Leak("thing", name, "made by a test", "free", commands or (f"remove {name}",))


def test_what_depends_on_something_that_takes_its_time_is_tried_again() -> None:
    asked: list[str] = []
    pauses: list[float] = []

    def execute(words: list[str], **_: object) -> subprocess.CompletedProcess[str]:
        asked.append(words[-1])
        refused = words[-1] == "remove group" and asked.count("remove group") < 3
        return subprocess.CompletedProcess(words, 1 if refused else 0, "", "DependencyViolation: has a dependent object" if refused else "")

    said: list[str] = []
    assert remove([_leak("balancer"), _leak("group")], note=said.append, execute=execute, sleep=pauses.append) == {}
    assert asked == ["remove balancer", "remove group", "remove group", "remove group"]
    assert pauses == [30.0, 30.0]
    assert "  DependencyViolation: has a dependent object" in said


def test_what_never_goes_is_returned_with_what_aws_said() -> None:
    def execute(words: list[str], **_: object) -> subprocess.CompletedProcess[str]:
        return subprocess.CompletedProcess(words, 254, "", "An error occurred (AccessDenied) when calling\n it")

    leak = _leak("key")
    pauses: list[float] = []
    assert remove([leak], note=lambda _: None, execute=execute, sleep=pauses.append) == {
        leak: "An error occurred (AccessDenied) when calling it"
    }
    assert len(pauses) == ROUNDS - 1


def test_what_is_gone_already_is_no_failure_and_its_other_commands_run() -> None:
    asked: list[str] = []

    def execute(words: list[str], **_: object) -> subprocess.CompletedProcess[str]:
        asked.append(words[-1])
        return subprocess.CompletedProcess(words, 254 if len(asked) == 1 else 0, "", "(NoSuchEntity) The role policy cannot be found.")

    assert remove([_leak("role", "detach", "delete")], note=lambda _: None, execute=execute, sleep=lambda _: None) == {}
    assert asked == ["detach", "delete"]
