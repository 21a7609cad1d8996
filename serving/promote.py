"""From an export to a release: checked, judged, and published whole or not at all.

Three objects below one immutable name, each written only if it is not there: weights, then `release.json`, and last the
configuration, which is what Ray Serve looks for. So a promotion that is killed leaves nothing that a reader would take for an adapter,
the next one goes on with what is there, and many at once write the same bytes or meet a refusal.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from config import names
from config.problems import Problem, Refused
from serving import aliases, gate, releases
from serving.export import Export, Stamp, stamp
from serving.releases import BaseModelUsed, File, Release
from serving.store import Conflict, Store
from training import record as records

if TYPE_CHECKING:
    from config.environment import Environment
    from training.record import Record
    from training.verdicts import Verdict

SHA256 = "sha256"  # metadata of every object: what it holds


@dataclass(frozen=True)
class Plan:
    """What would be published, as the same object that `publish` takes."""

    release: Release
    folder: Path
    stamp: Stamp

    def document(self) -> dict[str, Any]:
        """For programs."""
        return {**self.release.model_dump(mode="json"), "folder": str(self.folder)}


def plan(
    env: Environment, record: Record, export: Export, *, record_bytes: bytes, override: str | None = None, by: str | None = None,
    now: datetime | None = None,
) -> Plan:  # fmt: skip
    """The release that an export becomes. Raises Refused where the gate did not pass it and there is no reason to override that."""
    from training.jobs import submitter

    verdict = gate.latest(record, export.step)
    _allowed(env, record, export, verdict, override)
    name = names.release(env.serving.adapter, step=export.step, digest=export.digest)
    return Plan(
        Release(
            name=name, adapter=env.serving.adapter, step=export.step, run_id=record.run_id, environment=env.name,
            content_digest=export.digest, files=export.files, rank=export.rank, alpha=export.alpha,
            base_model=BaseModelUsed(
                path=export.base_path, repository=record.model.repository, subfolder=record.model.subfolder,
                revision=export.base_commit or record.model.revision,
            ),
            image=record.image.uri, image_digest=record.image.digest, code_commit=record.code.commit,
            record_sha256=hashlib.sha256(record_bytes).hexdigest(), gate=_summary(verdict, export),
            override=override.strip() if override and (verdict is None or not _holds(verdict, export)) else None,
            trainer="stand-in" if export.stand_in else "skyrl", published_by=by or submitter(),
            published_at=(now or datetime.now(UTC)).astimezone(UTC).isoformat(timespec="seconds"),
        ),
        export.folder, export.stamp,
    )  # fmt: skip


def _holds(verdict: Verdict, export: Export) -> bool:
    return verdict.passed and verdict.export_digest == export.digest


def _allowed(env: Environment, record: Record, export: Export, verdict: Verdict | None, override: str | None) -> None:
    field, found = f"run {record.run_id} step {export.step}", []
    again = f"hyperpod-rl gate {record.run_id} --step {export.step}"
    if export.stand_in and not env.local:
        # No reason can override this: it is no language model.
        found.append(Problem(field, "", "a stand-in trained it, and that is released in environment local only", "promote a run of SkyRL"))
    elif override is not None and not override.strip():
        found.append(
            Problem("--override", repr(override), "a reason is needed, and it is recorded", 'for example --override "demo of 1 May"')
        )
    elif override is None:
        overriding = 'or give a reason that is recorded: --override "reason"'
        if verdict is None:
            found.append(Problem(field, "", "the gate has not judged it", f"run {again}, {overriding}"))
        elif verdict.export_digest != export.digest:
            found.append(Problem(field, "", "its bytes are not those that the gate judged", f"run {again}, {overriding}"))
        elif not verdict.passed:
            found.append(Problem(field, "", f"the gate did not pass it ({'; '.join(verdict.reasons)})", overriding))
    if found:
        raise Refused(found)


def check_current(store: Store, record: Record, release: Release) -> None:
    """Raises Refused where `current` names a release that the gate did not compare this one with: it may be the better one."""
    now, verdict = aliases.read(store, aliases.CURRENT), gate.latest(record, release.step)
    if now is None or verdict is None or now.release in (release.name, verdict.current_release):
        return
    against = f"when {verdict.current_release} was current" if verdict.current_release else "when no release was current"
    rule = f"the gate judged step {release.step} {against}, and did not compare it with {now.release}"
    fix = f'run hyperpod-rl gate {record.run_id} --step {release.step}, or give a reason that is recorded: --override "reason"'
    raise Refused(Problem("alias current", now.release, rule, fix))


def _summary(verdict: Verdict | None, export: Export) -> releases.Verdict | None:
    """What the lineage says of the gate; None if it did not judge these bytes."""
    if verdict is None or verdict.export_digest != export.digest:
        return None
    rates = {name: found.rate for name in ("baseline", "candidate") if (found := verdict.of(name)) is not None}
    fresh = verdict.of("candidate", "fresh")
    compared = next((each for each in verdict.comparisons if (each.against, each.maze_set) == ("baseline", "held-out")), None)
    return releases.Verdict(
        passed=verdict.passed, at=verdict.at, digest=hashlib.sha256(verdict.model_dump_json().encode()).hexdigest(),
        reasons=verdict.reasons, baseline_rate=rates.get("baseline"), candidate_rate=rates.get("candidate"),
        fresh_rate=fresh.rate if fresh is not None else None, p_value=compared.p_better if compared is not None else None,
        max_turns=judged.max_turns if (judged := verdict.of("candidate")) is not None else None,
    )  # fmt: skip


def publish(store: Store, wanted: Plan, *, progress: Callable[[int], None] = lambda sent: None) -> tuple[Release, bool]:
    """Upload the release, and return what stands in the bucket and whether it is new.

    Repeating it changes nothing. `progress` is told how many more bytes have arrived, from several threads. Raises Refused, with
    nothing visible changed, where the name exists with other bytes; Unreachable where S3 does not answer.
    """
    release, folder = wanted.release, wanted.folder

    def unchanged() -> None:
        if stamp(folder) != wanted.stamp:
            raise Refused(Problem(f"export of step {release.step}", str(folder), "it changed while it was uploaded", "promote it again"))

    weights, settings = (_file(release, name) for name in (names.ADAPTER_WEIGHTS, names.ADAPTER_CONFIG))
    new = not releases.exists(store, release.name)
    _weights(store, release, weights, folder / weights.name, progress, unchanged)
    stored = _record(store, release)
    _once(store, release, settings, (folder / settings.name).read_bytes())
    if len(store.list(names.release_key(release.name))) < len(release.files) + 1:
        # Somebody retires it at this moment: what is left must not look like a release.
        store.delete(names.release_key(release.name, names.ADAPTER_CONFIG))
        raise Refused(Problem("release", release.name, "it was retired while it was published", "promote it again"))
    return stored, new


def _weights(
    store: Store, release: Release, file: File, path: Path, progress: Callable[[int], None], confirm: Callable[[], None]
) -> None:  # fmt: skip
    key = names.release_key(release.name, file.name)
    if not _there(store, key, release, file):
        try:
            store.upload(key, path, if_absent=True, metadata={SHA256: file.sha256}, progress=progress, confirm=confirm)
        except Conflict:
            # Another promotion was faster, or this one's own answer was lost on the way.
            if not _there(store, key, release, file):
                raise Refused(Problem("release", release.name, "it is being retired at this moment", "promote it again")) from None


def _record(store: Store, release: Release) -> Release:
    """Write `release.json` unless it is there; what is there must be about the same bytes. Returns what is there."""
    key = names.release_key(release.name, names.RELEASE_RECORD)
    try:
        store.put(key, release.text(), if_absent=True)
    except Conflict:
        found = store.get(key)
        if found is None:  # a retirement runs at the same time
            raise Refused(Problem("release", release.name, "it is being retired at this moment", "promote it again")) from None
        there = releases.parsed(found[0], where=f"s3://{store.bucket}/{key}")
        if not there.same_content(release):
            raise Refused(_other_bytes(store, key, release)) from None
        return there
    return release


def _once(store: Store, release: Release, file: File, content: bytes) -> None:
    """The last object: from here on the release exists."""
    key = names.release_key(release.name, file.name)
    if hashlib.sha256(content).hexdigest() != file.sha256:
        raise Refused(Problem(f"export of step {release.step}", file.name, "it changed while it was uploaded", "promote it again"))
    if _there(store, key, release, file):
        return
    try:
        store.put(key, content, if_absent=True, metadata={SHA256: file.sha256})
    except Conflict:
        if not _there(store, key, release, file):
            raise Refused(_other_bytes(store, key, release)) from None


def _there(store: Store, key: str, release: Release, file: File) -> bool:
    """Whether the object is there with these bytes. Raises Refused if it is there with others."""
    head = store.head(key)
    if head is None:
        return False
    if (head.size, head.metadata.get(SHA256)) != (file.size_bytes, file.sha256):
        raise Refused(_other_bytes(store, key, release))
    return True


def _other_bytes(store: Store, key: str, release: Release) -> Problem:
    rule = f"this name exists with other bytes (s3://{store.bucket}/{key}), and a release never changes"
    return Problem("release", release.name, rule, f"look at who wrote it, or retire it first: hyperpod-rl retire {release.name}")


def _file(release: Release, name: str) -> File:
    return next(file for file in release.files if file.name == name)


def note(folder: Path, release: Release) -> None:
    """An event in the run's record, once. Raises OSError."""
    told = f"step {release.step} released as {release.name}" + (f", against the gate: {release.override}" if release.override else "")
    with records.locked(folder):
        before = records.read(folder)
        if before is None or any((event.kind, event.text) == ("release", told) for event in before.events):
            return
        records.write(folder, before.model_copy(update={"events": (*before.events, records.event("release", told))}))
