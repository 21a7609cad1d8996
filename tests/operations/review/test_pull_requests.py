"""Pull requests of one line each, and what the review says of them, word for word."""

from __future__ import annotations

import os
from collections.abc import Callable

import pytest

from operations.review import show
from operations.review.compare import Review, compare
from operations.review.risks import accepted
from operations.review.sides import Side
from tests.operations.review.revisions import FOLDER, PullRequest, head, pull_requests

REQUESTS = {request.name: request for request in pull_requests()}
WRITE = os.environ.get("HYPERPOD_RL_SNAPSHOTS") == "write"


@pytest.fixture(params=list(REQUESTS.values()), ids=list(REQUESTS))
def request_and_review(request: pytest.FixtureRequest, bases: Callable[[str], Side]) -> tuple[PullRequest, Review]:
    pull: PullRequest = request.param
    return pull, compare(pull.environment, bases(pull.environment), head(pull))


def test_each_replacement_widening_and_loss_is_flagged(request_and_review: tuple[PullRequest, Review]) -> None:
    pull, review = request_and_review
    text = "\n".join(line for _, line in show.lines(review)) + "\n"
    snapshot = FOLDER / "snapshots" / f"{pull.name}.txt"
    if WRITE:
        snapshot.parent.mkdir(exist_ok=True)
        snapshot.write_text(text, encoding="utf-8")
    assert text == snapshot.read_text(encoding="utf-8"), "HYPERPOD_RL_SNAPSHOTS=write makes it anew; then read what changed"
    found = [risk.id for risk in review.risks]
    assert set(pull.risks) <= set(found)
    assert bool(found) == bool(pull.risks)
    replaced = {change.id for stack in review.stacks for change in stack.resources if change.action == "replaced"}
    assert set(pull.replaced) <= replaced
    assert review.worst.word == pull.effect
    assert all(risk.accepted for risk in accepted(list(review.risks), f"Accept: {', '.join(found)}")), "each by the line that is offered"


def test_there_are_enough_of_them() -> None:
    assert len(REQUESTS) >= 25
    assert {path.stem for path in (FOLDER / "snapshots").glob("*.txt")} == set(REQUESTS)
