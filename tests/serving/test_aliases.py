from __future__ import annotations

import json
from concurrent.futures import ThreadPoolExecutor

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from config import names
from config.problems import Failed, Refused
from serving import aliases, releases
from serving.releases import File, Release
from serving.routing import read_alias
from serving.store import Store
from tests.serving.bucket import MemoryS3, memory_store

ONE, TWO, THREE = "maze-grpo-s10-00000001", "maze-grpo-s20-00000002", "maze-grpo-s30-00000003"


def publish(store: Store, *wanted: str) -> None:
    """Releases as `promote` leaves them."""
    for number, name in enumerate(wanted):
        release = Release(
            name=name, adapter="maze-grpo", step=10, run_id="run", environment="local", content_digest=f"sha256:{number}",
            files=(File(name=names.ADAPTER_WEIGHTS, size_bytes=1, sha256="a"),), rank=8, alpha=8,
            published_at=f"2026-11-29T10:0{number}:00+00:00",
        )  # fmt: skip
        store.put(names.release_key(name, names.ADAPTER_WEIGHTS), b"w")
        store.put(names.release_key(name, names.RELEASE_RECORD), release.text())
        store.put(names.release_key(name, names.ADAPTER_CONFIG), b"{}")


def current(store: Store) -> aliases.Alias:
    found = aliases.read(store, "current")
    assert found is not None
    return found


@pytest.fixture
def s3() -> MemoryS3:
    return MemoryS3()


@pytest.fixture
def store(s3: MemoryS3) -> Store:
    made = memory_store(s3)
    publish(made, ONE, TWO, THREE)
    return made


def test_an_alias_is_moved_with_its_history(store: Store) -> None:
    assert aliases.read(store, "current") is None
    aliases.move(store, "current", ONE, reason="first", by="ada")
    after = aliases.move(store, "current", TWO, reason="better", by="bob")
    assert aliases.read(store, "current") == after
    assert after.release == TWO
    assert after.previous == ONE
    assert [(move.release, move.by, move.reason) for move in after.history] == [(ONE, "ada", "first"), (TWO, "bob", "better")]
    stored = json.loads((store.get(names.alias_key("current")) or (b"",))[0])
    assert set(stored) == {"format", "alias", "release", "history"}


def test_moving_to_where_it_is_writes_nothing(store: Store, s3: MemoryS3) -> None:
    aliases.move(store, "canary", ONE, reason="", share=0.2)
    before = len(s3.writes)
    aliases.move(store, "canary", ONE, reason="again", share=0.2)
    assert len(s3.writes) == before
    assert aliases.move(store, "canary", ONE, reason="wider", share=0.5).share == 0.5
    seen = read_alias((store.get(names.alias_key("canary")) or (b"",))[0])
    assert seen is not None
    assert (seen.release, seen.share) == (ONE, 0.5)


def test_an_alias_to_a_missing_release_is_refused_with_those_that_are_there(store: Store) -> None:
    with pytest.raises(Refused, match=f"there is no such release; the newest are {THREE}, {TWO}, {ONE}"):
        aliases.move(store, "current", "maze-grpo-s40-0000000f", reason="")
    assert aliases.read(store, "current") is None


@pytest.mark.parametrize(
    ("alias", "release", "share", "said"),
    [
        ("latest", ONE, None, "there is no such alias"),
        ("current", "newest", None, "a release is named"),
        ("current", "../maze-grpo-s1-00000000", None, "a release is named"),
        ("current", ONE, 0.5, "only canary has a share"),
        ("canary", ONE, 1.5, "use 0 to 1"),
    ],
)
def test_what_cannot_be_moved_is_refused(store: Store, s3: MemoryS3, alias: str, release: str, share: float | None, said: str) -> None:
    before = len(s3.writes)
    with pytest.raises(Refused, match=said):
        aliases.move(store, alias, release, reason="", share=share)
    assert len(s3.writes) == before


def test_of_many_who_move_it_at_once_none_is_lost_from_the_history(store: Store) -> None:
    def move(number: int) -> None:
        aliases.move(store, "current", (ONE, TWO, THREE)[number % 3], reason=str(number), sleep=lambda _: None)

    with ThreadPoolExecutor(20) as pool:
        list(pool.map(move, range(20)))
    found = aliases.read(store, "current")
    assert found is not None
    assert found.history[-1].release == found.release
    # Who asks for what is there already changes nothing; everybody else stands in the history once.
    assert len({move.reason for move in found.history}) == len(found.history)
    assert all(a.release != b.release for a, b in zip(found.history, found.history[1:], strict=False))


def test_rollbacks_go_back_one_by_one_and_then_refuse(store: Store) -> None:
    for release in (ONE, TWO, THREE):
        aliases.move(store, "current", release, reason="")
    assert aliases.rollback(store).release == TWO
    assert aliases.rollback(store).release == ONE
    with pytest.raises(Refused, match="no earlier release"):
        aliases.rollback(store)
    assert [move.release for move in current(store).history] == [ONE, TWO, THREE, TWO, ONE]


def test_after_a_rollback_and_a_new_release_one_returns_to_the_good_one(store: Store) -> None:
    aliases.move(store, "current", ONE, reason="")
    aliases.move(store, "current", TWO, reason="")
    aliases.rollback(store)
    aliases.move(store, "current", THREE, reason="")
    assert aliases.rollback(store).release == ONE


def test_a_rollback_that_names_what_it_leaves_can_be_repeated(store: Store) -> None:
    for release in (ONE, TWO, THREE):
        aliases.move(store, "current", release, reason="")
    assert aliases.rollback(store, leaving=THREE).release == TWO
    assert aliases.rollback(store, leaving=THREE).release == TWO


def test_a_rollback_takes_away_the_canary_of_the_release_that_it_leaves(store: Store) -> None:
    aliases.move(store, "current", ONE, reason="")
    aliases.move(store, "current", TWO, reason="")
    aliases.move(store, "canary", TWO, reason="", share=0.3)
    aliases.rollback(store)
    assert aliases.read(store, "canary") is None
    aliases.move(store, "canary", THREE, reason="")
    aliases.move(store, "current", TWO, reason="")
    aliases.rollback(store)
    assert aliases.read(store, "canary") is not None  # it names another one


def test_a_rollback_that_cannot_be_done_leaves_the_canary(store: Store) -> None:
    aliases.move(store, "current", TWO, reason="")
    aliases.move(store, "canary", TWO, reason="")
    with pytest.raises(Refused):
        aliases.rollback(store)
    assert aliases.read(store, "canary") is not None
    with pytest.raises(Refused, match="names no release"):
        aliases.rollback(memory_store())


def test_a_rollback_to_a_retired_release_is_refused(store: Store) -> None:
    aliases.move(store, "current", ONE, reason="")
    aliases.move(store, "current", TWO, reason="")
    assert aliases.retire(store, ONE)
    with pytest.raises(Refused, match=f"{ONE}, was retired"):
        aliases.rollback(store)
    assert current(store).release == TWO


def test_nobody_is_sent_to_a_release_whose_weights_were_deleted_by_hand(store: Store) -> None:
    aliases.move(store, "current", ONE, reason="")
    aliases.move(store, "current", TWO, reason="")
    for lost in (ONE, THREE):
        store.delete(names.release_key(lost, names.ADAPTER_WEIGHTS))
    with pytest.raises(Refused, match=f"the weights of {THREE} are gone from the bucket"):
        aliases.move(store, "current", THREE, reason="")
    with pytest.raises(Refused, match=f"the weights of {ONE} are gone from the bucket"):
        aliases.rollback(store)
    assert current(store).release == TWO
    # The one that users have may be broken itself: that is what a rollback is for.
    store.put(names.release_key(ONE, names.ADAPTER_WEIGHTS), b"w")
    store.delete(names.release_key(TWO, names.ADAPTER_WEIGHTS))
    assert aliases.rollback(store).release == ONE


def test_a_release_that_an_alias_names_is_not_retired(store: Store, s3: MemoryS3) -> None:
    aliases.move(store, "canary", ONE, reason="")
    before = dict(s3.objects)
    with pytest.raises(Refused, match="alias canary names it; hyperpod-rl alias canary --remove"):
        aliases.retire(store, ONE)
    assert s3.objects == before
    assert aliases.remove(store, "canary", reason="enough seen") is not None
    assert read_alias((store.get(names.alias_key("canary")) or (b"",))[0]) is None  # as the endpoint reads it
    assert aliases.remove(store, "canary", reason="again") is None
    assert aliases.retire(store, ONE)
    assert not aliases.retire(store, ONE)
    assert [release.name for release in releases.list_releases(store)] == [THREE, TWO]
    assert not s3.objects.keys() & {names.release_key(ONE, file) for file in (names.ADAPTER_WEIGHTS, names.RELEASE_RECORD)}


def test_a_release_that_gets_an_alias_while_it_is_retired_stays(store: Store, s3: MemoryS3) -> None:
    def alias_moves(operation: str, key: str) -> None:
        if operation == "DeleteObject":
            s3.before_write = lambda operation, key: None
            aliases.move(store, "current", ONE, reason="at the same moment")

    s3.before_write = alias_moves
    with pytest.raises(Refused, match="alias current names it"):
        aliases.retire(store, ONE)
    assert releases.exists(store, ONE)
    assert current(store).release == ONE


def test_an_alias_does_not_stay_on_a_release_that_was_retired_meanwhile(store: Store, s3: MemoryS3) -> None:
    aliases.move(store, "current", TWO, reason="")

    def is_retired(operation: str, key: str) -> None:
        if key == names.alias_key("current"):
            s3.before_write = lambda operation, key: None
            aliases.retire(store, ONE)

    s3.before_write = is_retired
    with pytest.raises(Refused, match="no such release"):
        aliases.move(store, "current", ONE, reason="")
    assert current(store).release == TWO


def test_what_is_no_alias_and_no_record_is_said(store: Store) -> None:
    store.put(names.alias_key("current"), b"[]")
    with pytest.raises(Failed, match="is no alias"):
        aliases.read(store, "current")
    store.put(names.release_key(ONE, names.RELEASE_RECORD), b"{}")
    with pytest.raises(Failed, match="is no record of a release"):
        releases.read(store, ONE)


def test_a_folder_without_a_record_is_no_release(store: Store) -> None:
    store.put("lora-adapters/by-hand/adapter_config.json", b"{}")
    store.put("lora-adapters/maze-grpo-s9-00000009/adapter_config.json", b"{}")
    store.put("lora-adapters/maze-grpo-s8-00000008/release.json", b"half")
    assert [release.name for release in releases.list_releases(store)] == [THREE, TWO, ONE]


@pytest.mark.parametrize(
    "body",
    [
        b"", b"\xff", b"null", b"[" * 100_000, b'{"alias": "current"}', b'{"alias": "current", "release": 5}',
        b'{"alias": "current", "release": "../../runs/x"}', b'{"alias": "canary", "release": "maze-grpo-s10-00000001"}',
        b'{"alias": "current", "release": "maze-grpo-s10-00000001", "history": "long"}',
    ],
)  # fmt: skip
def test_a_garbled_alias_is_one_sentence_and_is_not_written_over(store: Store, s3: MemoryS3, body: bytes) -> None:
    store.put(names.alias_key("current"), body)
    for work in (
        lambda: aliases.read(store, "current"), lambda: aliases.move(store, "current", ONE, reason=""), lambda: aliases.rollback(store),
        lambda: aliases.retire(store, TWO),
    ):  # fmt: skip
        with pytest.raises(Failed, match=r"aliases/current.json is no alias; move it away"):
            work()
    assert s3.objects[names.alias_key("current")][0] == body
    assert releases.exists(store, TWO)


def test_an_alias_of_a_newer_version_is_neither_read_nor_written_over(store: Store, s3: MemoryS3) -> None:
    """Writing it anew would lose what this version does not know of."""
    aliases.move(store, "current", ONE, reason="first")
    key = names.alias_key("current")
    newer = json.dumps({**json.loads(s3.objects[key][0]), "format": 2, "weights": {"a": 1}}).encode()
    store.put(key, newer)
    for change in (
        lambda: aliases.read(store, "current"), lambda: aliases.move(store, "current", TWO, reason="x"), lambda: aliases.rollback(store),
    ):  # fmt: skip
        with pytest.raises(Failed, match="written by a newer hyperpod-rl"):
            change()
    assert s3.objects[key][0] == newer


def test_one_unreadable_record_does_not_hide_the_other_releases(store: Store) -> None:
    newer = json.dumps({**json.loads(store.get(names.release_key(TWO, names.RELEASE_RECORD))[0]), "format": 2})  # type: ignore[index]
    for name, body in ((ONE, b"garbage"), (TWO, newer.encode())):
        store.put(names.release_key(name, names.RELEASE_RECORD), body)
    said: list[str] = []
    assert [release.name for release in releases.list_releases(store, unreadable=said.append)] == [THREE]
    assert "is no record of a release (1 errors in it); hyperpod-rl retire" in said[0]
    assert "was written by a newer hyperpod-rl (format 2, and this one reads 1)" in said[1]
    with pytest.raises(Failed):
        releases.list_releases(store)
    with pytest.raises(Refused, match=f"there is no such release; the newest are {THREE}"):
        aliases.move(store, "current", "maze-grpo-s40-0000000f", reason="")
    assert aliases.retire(store, ONE)


def test_where_a_rollback_would_lead_is_what_it_does(store: Store) -> None:
    with pytest.raises(Refused, match="names no release"):
        aliases.rollback_target(store)
    aliases.move(store, "current", ONE, reason="")
    with pytest.raises(Refused, match="no earlier release"):
        aliases.rollback_target(store)
    aliases.move(store, "current", TWO, reason="")
    assert aliases.rollback_target(store) == ONE
    assert aliases.rollback_target(store, leaving=THREE) is None
    assert aliases.rollback(store).release == ONE


@settings(max_examples=60, deadline=None)
@given(st.lists(st.sampled_from([ONE, TWO, THREE, "back"]), max_size=14))
def test_moves_and_rollbacks_are_a_stack(steps: list[str]) -> None:
    """Whatever happened before: a rollback undoes the last move that was not undone yet, and refuses where there is none."""
    made, stack = memory_store(), list[str]()
    publish(made, ONE, TWO, THREE)
    for step in steps:
        if step != "back":
            aliases.move(made, "current", step, reason="")
            stack += [step] if stack[-1:] != [step] else []
        elif len(stack) > 1:
            stack.pop()
            assert aliases.rollback_target(made) == stack[-1]
            aliases.rollback(made)
        else:
            with pytest.raises(Refused):
                aliases.rollback(made)
        found = aliases.read(made, "current")
        assert (found.release if found else None) == (stack[-1] if stack else None)
