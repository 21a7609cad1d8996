"""What keeps data, and keeps it less than before: versions, days, backups, copies, locks.

Nothing goes at once, so no job notices; but what is gone later by this change is gone for good.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from operations.review.effects import DATA
from operations.review.resources import ResourceChange
from operations.review.values import plain

Json = Mapping[str, Any]
FOREVER = float("inf")
_LOCKS = ("DeletionProtection", "DeletionProtectionEnabled")
_REMOVED = {
    "AWS::FSx::DataRepositoryAssociation": "what is written to the file system is no longer copied to S3",
    "AWS::Backup::BackupPlan": "no backups are made any more",
}


def lessened(change: ResourceChange) -> tuple[str, ...]:
    """A sentence for each way in which a resource that stays keeps less than before, and for what kept another one's data and goes."""
    if change.action == "removed":
        return (_REMOVED[change.type],) if change.type in _REMOVED else ()
    if not change.before or not change.after:
        return ()
    return tuple(dict.fromkeys((*_policy(change), *_settings(change))))


def _policy(change: ResourceChange) -> Iterator[str]:
    if change.type in DATA and change.before and change.after:
        was, now = (str(side.get("DeletionPolicy", "Delete")) for side in (change.before, change.after))
        if was.startswith("Retain") and not now.startswith("Retain"):
            yield f"{DATA[change.type]} is deleted with the stack from now on (DeletionPolicy {was} -> {now})"


def _settings(change: ResourceChange) -> Iterator[str]:
    old, new = (plain((side or {}).get("Properties", {})) for side in (change.before, change.after))
    for lock in _LOCKS:
        if _yes(old.get(lock)) and not _yes(new.get(lock)):
            yield f"{lock} is taken away: one call deletes it"
    if reader := _READERS.get(change.type):
        yield from reader(old, new)


def _bucket(old: Json, new: Json) -> Iterator[str]:
    was, now = (side.get("VersioningConfiguration", {}).get("Status") == "Enabled" for side in (old, new))
    if was and not now:
        yield "objects have no versions any more: what is overwritten or deleted is gone"
    if old.get("ReplicationConfiguration") and not new.get("ReplicationConfiguration"):
        yield "objects are no longer copied to another bucket"
    before = list(_expiries(old))
    for what, prefix, days in _expiries(new):
        same = [limit for kind, place, limit in before if kind == what and prefix.startswith(place)]
        if not any(limit <= days for limit in same):
            had = min(same, default=FOREVER)
            yield f"{what} below {prefix or 'the whole bucket'} are deleted after {_days(days)} (before: {_days(had)})"


def _expiries(bucket: Json) -> Iterator[tuple[str, str, float]]:
    for rule in bucket.get("LifecycleConfiguration", {}).get("Rules", ()):
        if rule.get("Status") != "Enabled":
            continue
        prefix = str(rule.get("Prefix") or rule.get("Filter", {}).get("Prefix") or "")
        if "ExpirationDate" in rule:
            yield "objects", prefix, 0
        if "ExpirationInDays" in rule:
            yield "objects", prefix, float(rule["ExpirationInDays"])
        older = rule.get("NoncurrentVersionExpiration", {}).get("NoncurrentDays", rule.get("NoncurrentVersionExpirationInDays"))
        if older is not None:
            yield "older versions of objects", prefix, float(older)


def _repository(old: Json, new: Json) -> Iterator[str]:
    if old.get("ImageTagMutability") == "IMMUTABLE" and new.get("ImageTagMutability") != "IMMUTABLE":
        yield "a tag may be given to another image from now on"
    before = {_selection(rule): _kept(rule) for rule in _images(old)}
    for rule in _images(new):
        if _kept(rule) < before.get(_selection(rule), FOREVER):
            had = before.get(_selection(rule))
            what = rule.get("description") or _selection(rule)
            yield f"images go sooner ({what}): {_kept(rule):.0f}" + (f", not {had:.0f}" if had else "")


def _images(repository: Json) -> Sequence[Json]:
    try:
        found: Sequence[Json] = json.loads(str(repository.get("LifecyclePolicy", {}).get("LifecyclePolicyText") or "{}")).get("rules", ())
    except ValueError:
        return ()
    return found


def _selection(rule: Json) -> str:
    return json.dumps({name: value for name, value in rule.get("selection", {}).items() if name != "countNumber"}, sort_keys=True)


def _kept(rule: Json) -> float:
    return float(rule.get("selection", {}).get("countNumber", FOREVER))


def _file_system(old: Json, new: Json) -> Iterator[str]:
    was, now = (int(side.get("LustreConfiguration", {}).get("AutomaticBackupRetentionDays") or 0) for side in (old, new))
    if now < was:
        yield f"daily backups are kept {_days(now)}, not {_days(was)}" if now else "no daily backups are made any more"


def _association(old: Json, new: Json) -> Iterator[str]:
    was, now = (set(side.get("S3", {}).get("AutoExportPolicy", {}).get("Events", ())) for side in (old, new))
    if gone := sorted(was - now):
        yield f"S3 no longer gets what is {', '.join(gone).lower()} on the file system"


def _logs(old: Json, new: Json) -> Iterator[str]:
    was, now = (float(side.get("RetentionInDays") or FOREVER) for side in (old, new))
    if now < was:
        yield f"log events are deleted after {_days(now)}, not {_days(was)}"


def _key(old: Json, new: Json) -> Iterator[str]:
    if new.get("Enabled") in (False, "false") and old.get("Enabled") not in (False, "false"):
        yield "the key is disabled: what is encrypted with it cannot be read"


def _days(days: float) -> str:
    return "never" if days == FOREVER else f"{days:.0f} day" + ("" if days == 1 else "s")


def _yes(value: Any) -> bool:
    return value in (True, "true")


_READERS: Mapping[str, Callable[[Json, Json], Iterator[str]]] = {
    "AWS::S3::Bucket": _bucket,
    "AWS::ECR::Repository": _repository,
    "AWS::FSx::FileSystem": _file_system,
    "AWS::FSx::DataRepositoryAssociation": _association,
    "AWS::Logs::LogGroup": _logs,
    "AWS::KMS::Key": _key,
}
