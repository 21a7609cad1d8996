"""A waiter's function sees the time that its state machine would have waited on AWS."""

from __future__ import annotations

import pytest

from local.cloud import waits


def test_the_beginning_moves_back_by_the_time_that_was_not_waited() -> None:
    # A second here are 100 s there.
    event = {"Began": "1000", "RequestType": "Create"}
    assert waits.shortened(event, now=1030.0) == {"Began": str(1030.0 - 3000.0), "RequestType": "Create"}
    assert event["Began"] == "1000", "the state machine sends the same event again"


@pytest.mark.parametrize("event", [{"RequestType": "Create"}, {"Began": "soon"}, {"Began": None}, "text", None, [1]])
def test_what_keeps_no_time_stays_as_it_is(event: object) -> None:
    assert waits.shortened(event, now=1030.0) == event


def test_it_is_the_word_that_the_handler_uses() -> None:
    from stacks.handlers import nodes_ready

    began = nodes_ready.on_event({"ResourceProperties": {"ClusterName": "c"}}, None)
    assert waits.BEGAN in began
