"""The parser of SkyRL's console output: the same steps for any cutting, and nothing that makes it stumble."""

from __future__ import annotations

import tracemalloc

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.training.console_text import line, step, training_log
from training.console import LONGEST_LINE, Event, Parser, Step, TrainingDone


def parse(data: bytes, cuts: list[int] | None = None) -> list[Event]:
    parser, events, last = Parser(), [], 0
    for cut in sorted({min(cut, len(data)) for cut in cuts or []}):
        events += parser.feed(data[last:cut])
        last = cut
    return [*events, *parser.feed(data[last:]), *parser.finish()]


METRICS = {
    "eval/all/pass_at_1": 0.75, "policy/final_loss": 0.0, "timing/step": 12.5, "trainer/global_step": 10, "policy/grad_norm": float("nan"),
}  # fmt: skip


def test_a_step_as_it_was_seen() -> None:
    (event,) = parse(step(10, METRICS).encode())
    assert isinstance(event, Step)
    assert event.number == 10
    assert event.whole
    assert event.metrics["eval/all/pass_at_1"] == 0.75
    assert event.metrics["trainer/global_step"] == 10
    assert isinstance(event.metrics["trainer/global_step"], int)
    assert str(event.metrics["policy/grad_norm"]) == "nan"


def test_a_worker_of_another_node_and_one_without_prefix() -> None:
    for worker in ("visgym_entrypoint pid=3, ip=10.1.2.3", ""):
        (event,) = parse(step(3, METRICS, worker=worker).encode())
        assert isinstance(event, Step)
        assert event.metrics["timing/step"] == 12.5


def test_lines_of_other_workers_between() -> None:
    lines = step(4, METRICS).splitlines(keepends=True)
    other = line("Step 99 of loading the model: {'a': 1}", worker="vllm pid=5").splitlines(keepends=True)
    mixed = "".join(part + other[0] for part in lines)
    (event,) = parse(mixed.encode())
    assert isinstance(event, Step)
    assert event.number == 4
    assert event.metrics["policy/final_loss"] == 0.0
    assert "a" not in event.metrics


def test_unknown_keys_and_words_are_kept() -> None:
    text = line("Step 1: \n{'brand/new': '3.0000',\n 'mode': 'warmup',\n 'trainer/global_step': 1}")
    (event,) = parse(text.encode())
    assert isinstance(event, Step)
    assert event.metrics == {"brand/new": 3.0, "mode": "warmup", "trainer/global_step": 1}


def test_a_step_whose_end_was_lost_does_not_swallow_the_next() -> None:
    lines = step(1, METRICS).splitlines(keepends=True)
    events = parse(("".join(lines[:3]) + step(2, METRICS)).encode())
    assert [(event.number, event.whole) for event in events if isinstance(event, Step)] == [(1, False), (2, True)]


def test_the_end_is_seen() -> None:
    assert parse(line("Training done!", module="skyrl.train.trainer").encode()) == [TrainingDone()]
    assert parse(b"Training done!\n") == [TrainingDone()]


def test_a_progress_bar_before_the_step() -> None:
    text = "\rTraining:  10%|#         | 1/10\r" + step(7, METRICS, worker="")
    assert [event.number for event in parse(text.encode()) if isinstance(event, Step)] == [7]


def test_what_only_looks_like_a_step() -> None:
    for text in ("Step by step\n", "- Step x: {\n", "the Step 5: was good\n", "loading - Step 12\n"):
        assert parse(text.encode()) == []


LOG = training_log(6).encode() + line("Training done!").encode()
PIECES = st.one_of(
    st.binary(max_size=40),
    st.sampled_from([
        b"\n", b"\r", b"Step 5: ", b"- Step 7: \n", b"{'a': '1.0',\n", b" 'b': 2}\n", b"\x1b[0m", b"}", b"(x pid=1) ", b"Training done!",
        step(8, METRICS).encode(), step(9, METRICS, worker="").encode(), line("hello").encode(), b"'", b"', '", b"\xff\xfe\n",
    ]),
)  # fmt: skip


@given(st.lists(st.integers(0, len(LOG)), max_size=30))
def test_any_cutting_gives_the_same(cuts: list[int]) -> None:
    whole = parse(LOG)
    assert [event.number for event in whole if isinstance(event, Step)] == [0, 1, 2, 3, 4, 5]
    assert parse(LOG, cuts) == whole


def test_single_bytes_give_the_same() -> None:
    assert parse(LOG, list(range(len(LOG)))) == parse(LOG)


@settings(max_examples=300)
@given(st.lists(PIECES, max_size=25), st.lists(st.integers(0, 3000), max_size=10))
def test_garbage_in_any_cutting_gives_the_same(pieces: list[bytes], cuts: list[int]) -> None:
    data = b"".join(pieces)
    assert repr(parse(data, cuts)) == repr(parse(data))  # repr: nan is not equal to itself


@given(st.lists(PIECES, max_size=25))
def test_garbage_loses_no_later_step(pieces: list[bytes]) -> None:
    later = step(1234567, {"trainer/global_step": 1234567}, worker="later_entrypoint pid=424242")
    data = b"".join(pieces) + b"\n" + later.encode()
    assert [event.whole for event in parse(data) if isinstance(event, Step) and event.number == 1234567] == [True]


NEAR: st.SearchStrategy[str] = st.lists(
    st.sampled_from([
        "'a'", "'b'", "'long/name_of-a.metric'", ": ", ":", " : ", ":  ", ",", ", ", ",\n ", " ,", "\n", "'1.0'", "'nan'", "'0.1'",
        "7", "-0.5", "-0", "1e999", "'1e999'", "'-0.0'", "NaN", "-NaN", "true", "null", "None", "[1, 2]", "{", "}", "'}x'", "'x y'",
        "'x  y'", "'v1.2'", "''", '"c"', "\\'", "1e5", "'1_0'", "007", "1.", ".5", "+1", "\t", "\r\n", "Infinity", "'inf'",
        "'d': '0.2500',\n ", "'w': 'warm up',\n ", "'v': '12ab',\n ",
        "'e': 3,\n ", "'" + "k" * 210 + "': 1,\n ", "'f': " + "9" * 120 + ",\n ", "'g': 0." + "37" * 40 + ",\n ", "Step 3: \n", "\x00",
    ]),
    max_size=14,
).map("".join)  # fmt: skip


@settings(max_examples=800)
@given(NEAR, st.booleans(), st.booleans())
def test_what_is_read_at_once_is_what_is_read_line_by_line(inside: str, other: bool, first: bool) -> None:
    text = line("Step 5: \n{'first': '0.5000',\n " + inside + "'last': 1}")
    if other:
        text = text.replace("\n", "\n" + line("busy with '{'", worker="vllm pid=77, ip=10.1.0.9").rstrip("\n") + "\n", 2)
    quick, slow = Parser(), Parser()
    quick._numbers = first
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Parser, "_block", lambda *_: 0)
        expected = [*slow.feed(text.encode()), *slow.finish()]
    assert repr([*quick.feed(text.encode()), *quick.finish()]) == repr(expected)


def test_two_workers_that_write_steps_at_once() -> None:
    one, two = (step(n, METRICS, worker=f"entrypoint pid={n}").splitlines(keepends=True) for n in (1, 2))
    events = parse("".join(a + b for a, b in zip(one, two, strict=True)).encode())
    assert sorted((event.number, event.whole, len(event.metrics)) for event in events if isinstance(event, Step)) == [
        (1, True, 5),
        (2, True, 5),
    ]


def test_a_step_without_an_end_holds_nothing_back() -> None:
    parser = Parser()
    torn = "".join(step(3, METRICS).splitlines(keepends=True)[:3]).encode()
    assert parser.feed(torn) == []
    events = parser.feed(step(4, METRICS).encode())  # its brace is the next one: both are known at once
    assert [(event.number, event.whole) for event in events if isinstance(event, Step)] == [(3, False), (4, True)]
    assert parser.feed(torn) == []
    assert parser.feed(line("Training done!").encode()) == [TrainingDone()]


def test_memory_stays_flat() -> None:
    parser = Parser()
    tracemalloc.start()
    try:
        for _ in range(3):
            for _ in range(40):
                parser.feed(b"x" * 65536)  # a line that never ends
            parser.feed(b"\n- Step 3: \n{")
            for _ in range(40):
                parser.feed(b" 'k': '" + b"y" * 300 + b"',\n" * 200)
            parser.feed(LOG)
        assert tracemalloc.get_traced_memory()[1] < 4 * LONGEST_LINE + 2_000_000
    finally:
        tracemalloc.stop()
    assert [event.number for event in parser.feed(step(42, METRICS).encode()) if isinstance(event, Step)] == [42]
