"""What a synthesis says beside its templates."""

from __future__ import annotations

import pytest

from config import load
from config.surroundings import worth_knowing
from tests.stacks.conftest import changed

OWN: dict[str, object] = {"account": "123456789012"}
ADMINISTRATOR = {"access.administrators": ["arn:aws:iam::123456789012:role/Administrator"]}
SOMEWHERE = {"access.public_cidrs": ["203.0.113.0/24"]}


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({}, ["names no account"]),
        (OWN, ["lets every address ask", "lets nobody into"]),
        ({**OWN, **ADMINISTRATOR}, ["lets every address ask"]),
        ({**OWN, **ADMINISTRATOR, "access.public_cidrs": ["0.0.0.0/0"]}, ["lets every address ask"]),
        ({**OWN, **SOMEWHERE}, ["lets nobody into"]),
        ({**OWN, **ADMINISTRATOR, **SOMEWHERE}, []),
        ({**OWN, **ADMINISTRATOR, "access.endpoint": "private"}, []),
    ],
)
def test_who_may_reach_the_cluster_is_said_before_it_is_made(changes: dict[str, object], said: list[str]) -> None:
    lines = worth_knowing(changed("reference", changes))
    assert len(lines) == len(said), lines
    assert all(words in line for words, line in zip(said, lines, strict=True))


def test_nothing_is_said_of_this_machine() -> None:
    assert worth_knowing(load.load("local")) == []
