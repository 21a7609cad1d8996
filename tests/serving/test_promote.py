from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from config import names
from config.load import load
from config.problems import Refused
from serving import aliases, export, promote, releases
from serving.export import Export
from serving.promote import Plan
from serving.store import Store
from tests.serving.bucket import Killed, MemoryS3, memory_store
from tests.serving.exports import RUN, adapter, make_record, write_export, write_record
from training import record as records
from training.record import Record
from training.verdicts import Measured, Rule, Verdict

ENV = load("local")


def verdict(found: Export, *, passed: bool = True, **changes: Any) -> Verdict:
    measured = tuple(
        Measured(who=who, maze_set="held-out", source="eval dump", solved=solved, mazes=64, rate=solved / 64, low=0, high=1)
        for who, solved in (("baseline", 19), ("candidate", 51))
    )
    made = Verdict(
        at="2026-11-29T10:00:00+00:00", run_id=RUN, step=found.step, selected="best", passed=passed, export_digest=found.digest,
        trainer="stand-in", measured=measured, rules=() if passed else (Rule(name="format", passed=False, said="0.500 (needs 0.95)"),),
    )  # fmt: skip
    return made.model_copy(update=changes)


def planned(step: int = 10, **more: Any) -> Plan:
    record = make_record()
    found = export.checked(ENV, record, step)
    record = record.model_copy(update={"verdicts": (verdict(found),)})
    return promote.plan(ENV, record, found, record_bytes=b"record", by="ada", **more)


def whole(store: Store, name: str) -> bool:
    """Whether everything that the endpoint needs is there, as the record says."""
    import hashlib

    record = releases.read(store, name)
    if record is None:
        return False
    for file in record.files:
        found = store.get(names.release_key(name, file.name))
        assert found is not None
        assert hashlib.sha256(found[0]).hexdigest() == file.sha256
    return True


def test_a_release_holds_three_files_and_its_lineage(shared: Path) -> None:
    folder = write_export(shared, 10)
    store, plan = memory_store(), planned()
    release, new = promote.publish(store, plan)
    assert new
    assert names.RELEASE.fullmatch(release.name)
    assert release.name == f"maze-grpo-s10-{release.content_digest.removeprefix('sha256:')[:8]}"
    assert store.list("") == [names.release_key(release.name, file) for file in sorted(
        (names.ADAPTER_CONFIG, names.ADAPTER_WEIGHTS, names.RELEASE_RECORD))]  # fmt: skip
    found = store.get(names.release_key(release.name, names.ADAPTER_WEIGHTS))
    assert found is not None
    assert found[0] == (folder / names.ADAPTER_WEIGHTS).read_bytes()
    told = releases.read(store, release.name)
    assert told == release
    assert told is not None
    assert (told.run_id, told.step, told.published_by, told.trainer, told.rank) == (RUN, 10, "ada", "stand-in", 8)
    assert told.gate is not None
    assert (told.gate.passed, told.gate.candidate_rate, told.gate.baseline_rate) == (True, 51 / 64, 19 / 64)
    assert len(told.record_sha256) == 64
    assert releases.list_releases(store) == [release]


def test_promoting_again_writes_nothing(shared: Path) -> None:
    write_export(shared, 10)
    s3 = MemoryS3()
    first, _ = promote.publish(memory_store(s3), planned())
    before, s3.writes = dict(s3.objects), []
    second, new = promote.publish(memory_store(s3), planned())
    assert (second, new) == (first, False)
    assert s3.objects == before
    assert [operation for operation, _ in s3.writes] in (["PutObject"], [])  # the record's, which is refused by its condition


@pytest.fixture
def parts(monkeypatch: pytest.MonkeyPatch) -> None:
    """Weights in several parts, one after the other, so that each can be the last."""
    monkeypatch.setattr("serving.store.PART_BYTES", 300)
    monkeypatch.setattr("serving.store.WORKERS", 1)


@pytest.mark.usefixtures("parts")
def test_killed_at_any_write_a_promotion_leaves_nothing_or_a_release_and_can_be_repeated(shared: Path) -> None:
    write_export(shared, 10)
    plan, counting = planned(), MemoryS3()
    promote.publish(memory_store(counting), plan)
    assert {"CreateMultipartUpload", "UploadPart", "CompleteMultipartUpload", "PutObject"} == {
        operation for operation, _ in counting.writes
    }
    for last in range(len(counting.writes) + 1):
        s3, calls = MemoryS3(), iter(range(len(counting.writes) + 1))

        def kill(operation: str, key: str, calls: Any = calls, last: int = last) -> None:
            if next(calls) == last:
                raise Killed

        s3.before_write = kill
        store = memory_store(s3)
        if last < len(counting.writes):
            with pytest.raises(Killed):
                promote.publish(store, plan)
        else:
            promote.publish(store, plan)
        s3.before_write = lambda operation, key: None
        there = whole(store, plan.release.name)
        assert there == (last == len(counting.writes))  # the very last write makes it
        assert [found.name for found in releases.list_releases(store)] == ([plan.release.name] if there else [])
        promote.publish(store, plan)
        assert whole(store, plan.release.name)


@pytest.mark.usefixtures("parts")
def test_a_reader_that_polls_never_sees_half_a_release(shared: Path) -> None:
    write_export(shared, 10)
    plan, s3 = planned(), MemoryS3()
    store, seen = memory_store(s3), []

    def look(operation: str, key: str) -> None:
        seen.append(whole(store, plan.release.name))  # raises where the configuration is there and a file is not, or is another

    s3.before_write = look
    promote.publish(store, plan)
    assert len(seen) > 4
    assert not any(seen)
    assert whole(store, plan.release.name)


@pytest.mark.usefixtures("parts")
def test_twenty_at_once_end_in_one_release_and_one_alias(shared: Path) -> None:
    write_export(shared, 10)
    plans, s3, begin = [planned() for _ in range(20)], MemoryS3(), threading.Barrier(20)
    store, stop = memory_store(s3), threading.Event()
    broken: list[AssertionError] = []

    def poll() -> None:
        while not stop.is_set():
            try:
                whole(store, plans[0].release.name)
            except AssertionError as error:
                broken.append(error)
                return

    def run(plan: Plan) -> Any:
        begin.wait()
        release, new = promote.publish(store, plan)
        aliases.move(store, "current", release.name, reason="promoted", sleep=lambda _: None)
        return release, new

    reader = threading.Thread(target=poll)
    reader.start()
    with ThreadPoolExecutor(20) as pool:
        done = list(pool.map(run, plans))
    stop.set()
    reader.join()
    assert broken == []
    assert len({release.text() for release, _ in done}) == 1  # everybody was told the same lineage
    assert whole(store, plans[0].release.name)
    assert len(releases.list_releases(store)) == 1
    alias = aliases.read(store, "current")
    assert alias is not None
    assert (alias.release, len(alias.history)) == (plans[0].release.name, 1)
    assert s3.uploads == {}


@pytest.mark.parametrize("file", [names.ADAPTER_WEIGHTS, names.ADAPTER_CONFIG, names.RELEASE_RECORD])
def test_a_name_that_exists_with_other_bytes_is_refused(shared: Path, file: str) -> None:
    write_export(shared, 10)
    plan, s3 = planned(), MemoryS3()
    store = memory_store(s3)
    other = plan.release.model_copy(update={"content_digest": "sha256:other"}).text() if file == names.RELEASE_RECORD else b"other"
    store.put(names.release_key(plan.release.name, file), other)
    before = s3.objects[names.release_key(plan.release.name, file)]
    with pytest.raises(Refused, match=r"this name exists with other bytes .*hyperpod-rl retire"):
        promote.publish(store, plan)
    assert s3.objects[names.release_key(plan.release.name, file)] == before
    if file != names.ADAPTER_CONFIG:
        assert not releases.exists(store, plan.release.name)


@pytest.mark.usefixtures("parts")
def test_an_export_that_changes_during_the_upload_does_not_become_a_release(shared: Path) -> None:
    folder = write_export(shared, 10)
    plan, s3 = planned(), MemoryS3()

    def rewrite(operation: str, key: str) -> None:
        if operation == "UploadPart":
            (folder / names.ADAPTER_WEIGHTS).write_bytes(b"x" * plan.release.files[0].size_bytes)

    s3.before_write = rewrite
    with pytest.raises(Refused, match="it changed while it was uploaded"):
        promote.publish(memory_store(s3), plan)
    assert s3.objects == {}


def test_a_release_that_is_retired_while_it_is_published_does_not_stay_in_half(shared: Path) -> None:
    write_export(shared, 10)
    plan, s3 = planned(), MemoryS3()
    store = memory_store(s3)

    def retire(operation: str, key: str) -> None:
        if key.endswith(names.ADAPTER_CONFIG):
            s3.before_write = lambda operation, key: None
            aliases.retire(store, plan.release.name)

    s3.before_write = retire
    with pytest.raises(Refused, match="retired while it was published"):
        promote.publish(store, plan)
    assert not releases.exists(store, plan.release.name)


def allowed(record: Record, **more: Any) -> Plan:
    found = export.checked(ENV, record, 10)
    return promote.plan(ENV, record, found, record_bytes=b"", **more)


def test_what_the_gate_did_not_pass_needs_a_reason_and_the_reason_is_recorded(shared: Path) -> None:
    write_export(shared, 10)
    found = export.checked(ENV, make_record(), 10)
    below = make_record().model_copy(update={"verdicts": (verdict(found), verdict(found, passed=False))})
    with pytest.raises(Refused, match=r"the gate did not pass it \(format: 0.500 .*--override"):
        allowed(below)
    with pytest.raises(Refused, match="a reason is needed"):
        allowed(below, override="  ")
    plan = allowed(below, override=" to try the endpoint ")
    release, _ = promote.publish(memory_store(), plan)
    assert (release.override, release.gate and release.gate.passed) == ("to try the endpoint", False)
    assert release.gate is not None
    assert release.gate.reasons == ("format: 0.500 (needs 0.95)",)


def test_what_was_not_judged_or_judged_with_other_bytes_is_refused(shared: Path) -> None:
    write_export(shared, 10)
    with pytest.raises(Refused, match=f"the gate has not judged it; run hyperpod-rl gate {RUN} --step 10"):
        allowed(make_record())
    found = export.checked(ENV, make_record(), 10)
    other = make_record().model_copy(update={"verdicts": (verdict(found, export_digest="sha256:0"),)})
    with pytest.raises(Refused, match="not those that the gate judged"):
        allowed(other)
    assert allowed(other, override="why not").release.gate is None


def test_a_reason_that_was_not_needed_is_not_recorded(shared: Path) -> None:
    write_export(shared, 10)
    found = export.checked(ENV, make_record(), 10)
    assert allowed(make_record().model_copy(update={"verdicts": (verdict(found),)}), override="sure").release.override is None


def test_a_stand_ins_export_is_released_in_environment_local_only(shared: Path) -> None:
    env = load("reference")
    write_export(shared, 10, weights=adapter(rank=8))
    record = make_record()
    found = export.checked(ENV, record, 10)
    judged = record.model_copy(update={"verdicts": (verdict(found),)})
    for override in (None, "please"):
        with pytest.raises(Refused, match="released in environment local only"):
            promote.plan(env, judged, found, record_bytes=b"", override=override)


def test_a_release_is_told_in_the_runs_record_once(shared: Path) -> None:
    write_export(shared, 10)
    write_record(shared, make_record())
    release = planned().release
    for _ in range(2):
        promote.note(shared / "runs" / RUN, release)
    found = records.read(shared / "runs" / RUN)
    assert found is not None
    assert [event.text for event in found.events] == [f"step 10 released as {release.name}"]
