"""Aliases: `current` is what users get, `canary` a release that a share of the requests gets.

An alias is one small object, changed by a conditional write only: of two who move it at once one writes first, and the other reads
again, so that the history loses nobody. A release that an alias names is never removed under it (`retire`).
"""

from __future__ import annotations

import json
import random
import time
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from typing import Annotated, Any, Final, Literal, get_args

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationError

from config import names
from config.problems import Failed, Problem, Refused, Unreachable
from serving import releases
from serving.store import Conflict, Store

AliasName = Literal["current", "canary"]
ALIASES: Final[tuple[str, ...]] = get_args(AliasName)
CURRENT: Final = "current"
CANARY: Final = "canary"
DEFAULT_SHARE: Final = 0.1
LONGEST_HISTORY: Final = 500
FORMAT: Final = 1
TRIES: Final = 60


class Move(BaseModel):
    """One entry of the history. `release` is empty where the alias was taken away; `undone` is what a rollback left."""

    model_config = ConfigDict(frozen=True, extra="ignore")

    release: str
    at: str
    by: str
    reason: str = ""
    undone: str | None = None


def _named_release(value: Any) -> Any:
    """'' for none; what no release can be called would be looked for in other places of the bucket."""
    if value is None:
        return ""
    if isinstance(value, str) and value and names.RELEASE.fullmatch(value) is None:
        raise ValueError("this is no name of a release")
    return value


class Alias(BaseModel):
    """One alias as it was read. `share` (canary only) is the share of requests, 0 to 1; the history's last entry is how it stands."""

    model_config = ConfigDict(frozen=True, extra="ignore")

    format: int = FORMAT
    name: str = Field(alias="alias")
    release: Annotated[str, BeforeValidator(_named_release)]
    share: float | None = Field(default=None, ge=0, le=1)
    history: tuple[Move, ...] = ()
    etag: str = Field(default="", exclude=True)

    def document(self) -> dict[str, Any]:
        """As it stands in the bucket: an alias that was taken away names null."""
        return self.model_dump(mode="json", by_alias=True, exclude_none=True) | ({} if self.release else {"release": None})

    @property
    def previous(self) -> str | None:
        """The release that a rollback returns to: the one before the move that set the present one; None if there is none."""
        stack: list[str] = []
        for move in self.history:
            if move.undone is not None:
                while stack and stack[-1] != move.release:
                    stack.pop()
            if not stack or stack[-1] != move.release:
                stack.append(move.release)
        earlier = [release for release in stack[:-1] if release]
        return earlier[-1] if earlier else None


def read(store: Store, name: str) -> Alias | None:
    """One alias; None if it names no release. Raises Failed if the object is no alias."""
    found = _read(store, name)
    return found if found is not None and found.release else None


def move(
    store: Store, name: str, release: str, *, reason: str, share: float | None = None, by: str | None = None,
    sleep: Callable[[float], None] = time.sleep,
) -> Alias:  # fmt: skip
    """Point an alias to a release. Repeating it changes nothing.

    Raises Refused where there is no such alias or release, or the share is none; nothing is changed then.
    """
    share = check_share(name, share)
    check_release(store, release)

    def change(before: Alias | None) -> Alias | None:
        if before is not None and (before.release, before.share) == (release, share):
            return None
        return _changed(name, before, release, share=share, reason=reason, by=by)

    before, after = _write(store, name, change, sleep)
    if not releases.exists(store, release):
        # Retired between the look and the write: whoever retires looks at the aliases again, and so does this.
        if before is not None and before.release and before.release != release and releases.exists(store, before.release):
            _write(store, name, lambda now: _changed(name, now, before.release, share=before.share, reason="undone: retired", by=by), sleep)
        else:
            remove(store, name, reason=f"undone: {release} was retired", by=by, sleep=sleep)
        check_release(store, release)
    return after


def check_share(name: str, share: float | None) -> float | None:
    """The share that an alias gets. Raises Refused where there is no such alias, or it has no share, or that is none."""
    check_name(name)
    if name == CANARY:
        share = DEFAULT_SHARE if share is None else share
        if not 0 <= share <= 1:
            raise Refused(Problem("share", str(share), "this is the share of requests that the canary gets", "use 0 to 1, e.g. 0.1"))
    elif share is not None:
        raise Refused(Problem("share", str(share), f"only {CANARY} has a share; {name} gets the rest", "leave it out"))
    return share


def remove(
    store: Store, name: str, *, reason: str, by: str | None = None, sleep: Callable[[float], None] = time.sleep
) -> Alias | None:  # fmt: skip
    """Let an alias name nothing; its history stays. Returns the alias as it was; None if it named nothing before."""
    check_name(name)

    def change(before: Alias | None) -> Alias | None:
        return None if before is None or not before.release else _changed(name, before, "", share=None, reason=reason, by=by)

    before, _ = _write(store, name, change, sleep)
    return before if before is not None and before.release else None


def rollback(
    store: Store, *, name: str = CURRENT, leaving: str | None = None, reason: str = "", by: str | None = None,
    sleep: Callable[[float], None] = time.sleep,
) -> Alias:  # fmt: skip
    """Move an alias back to the release before, and take away a canary that names the release which is left.

    Args:
        leaving: the release to leave: makes the command safe to repeat, since it changes nothing where the alias names another.

    Raises Refused where there is nothing to go back to, or it was retired; nothing is changed then.
    """
    first = _named_now(store, name)
    left = leaving or first.release

    def change(before: Alias | None) -> Alias | None:
        target = _target(store, before, left)
        if before is None or target is None:
            return None
        said = reason or f"rollback from {left}"
        return _changed(name, before, target, share=before.share, reason=said, by=by, undone=left)

    if name == CURRENT and (canary := read(store, CANARY)) is not None and canary.release == left:
        change(first)  # refuses before the canary is touched
        remove(store, CANARY, reason=reason or f"rollback from {left}", by=by, sleep=sleep)
    _, after = _write(store, name, change, sleep)
    return after


def rollback_target(store: Store, *, name: str = CURRENT, leaving: str | None = None) -> str | None:
    """Where `rollback` would lead; None where it would change nothing. Raises Refused as it does."""
    first = _named_now(store, name)
    return _target(store, first, leaving or first.release)


def _named_now(store: Store, name: str) -> Alias:
    found = read(store, name)
    if found is None:
        raise Refused(Problem(f"alias {name}", "", "it names no release, so there is nothing to leave", "promote one first"))
    return found


def _target(store: Store, before: Alias | None, left: str) -> str | None:
    """The release before the one that is left; None where the alias names another than that."""
    if before is None or before.release != left:
        return None
    field = f"alias {before.name}"
    if (target := before.previous) is None:
        rule = "there is no earlier release in its history"
        raise Refused(Problem(field, left, rule, "promote another one, or hyperpod-rl alias NAME RELEASE"))
    if not releases.whole(store, target):
        rule = f"the release before, {target}, was retired" if not releases.exists(store, target) else _no_weights(target)
        raise Refused(Problem(field, left, rule, f"name one that is there: hyperpod-rl alias {before.name} RELEASE"))
    return target


def retire(store: Store, release: str) -> bool:
    """Remove a release. False if there was nothing of it. Raises Refused, with nothing removed, where an alias names it.

    Its configuration goes first, so that no reader meets half a release, and a retirement that was killed can be run again.
    """
    releases.check_name(release)
    check_unnamed(store, release)
    keys = store.list(names.release_key(release))
    config = names.release_key(release, names.ADAPTER_CONFIG)
    kept = store.get(config)
    if kept is not None:
        store.delete(config)
        try:
            check_unnamed(store, release)  # an alias may have been moved there since the first look
        except Refused:
            store.put(config, kept[0])
            raise
    for key in keys:
        if key != config:
            store.delete(key)
    if keys and releases.exists(store, release):
        store.delete(config)  # published anew meanwhile, over what is gone now
    return bool(keys)


def named(store: Store) -> dict[str, list[str]]:
    """Release -> aliases that name it."""
    found: dict[str, list[str]] = {}
    for name in ALIASES:
        if (alias := read(store, name)) is not None:
            found.setdefault(alias.release, []).append(name)
    return found


def check_name(name: str) -> str:
    """There are two aliases. Raises Refused for another name."""
    if name not in ALIASES:
        raise Refused(Problem("alias", name, "there is no such alias", f"use {' or '.join(ALIASES)}"))
    return name


def _read(store: Store, name: str) -> Alias | None:
    key = names.alias_key(check_name(name))
    found = store.get(key)
    if found is None:
        return None
    try:
        made = Alias.model_validate({**json.loads(found[0]), "etag": found[1]})
        if made.name != name:
            raise ValueError(f"this is {made.name}")
    except (ValueError, ValidationError, TypeError, RecursionError):
        raise Failed(f"s3://{store.bucket}/{key} is no alias; move it away, then set the alias again") from None
    if made.format > FORMAT:
        # Writing it would lose what this version does not know of.
        where = f"s3://{store.bucket}/{key}"
        raise Failed(f"{where} was written by a newer hyperpod-rl (format {made.format}, and this one reads {FORMAT}); update this one")
    return made


def _changed(
    name: str, before: Alias | None, release: str, *, share: float | None, reason: str, by: str | None, undone: str | None = None
) -> Alias:  # fmt: skip
    from training.jobs import submitter

    entry = Move(
        release=release, at=datetime.now(UTC).isoformat(timespec="seconds"), by=by or submitter(), reason=reason[:500], undone=undone
    )
    history = (*(before.history if before else ()), entry)[-LONGEST_HISTORY:]
    return Alias(alias=name, release=release, share=share, history=history)


def _write(
    store: Store, name: str, change: Callable[[Alias | None], Alias | None], sleep: Callable[[float], None]
) -> tuple[Alias | None, Alias]:  # fmt: skip
    """Read, change, write if nobody wrote meanwhile, else again. Returns the alias before and after; no change writes nothing."""
    for attempt in range(TRIES):
        before = _read(store, name)
        after = change(before)
        if after is None:
            return before, before or Alias(alias=name, release="")
        text = (json.dumps(after.document(), ensure_ascii=False, indent=1) + "\n").encode()
        try:
            if before is None:
                etag = store.put(names.alias_key(name), text, if_absent=True)
            else:
                etag = store.put(names.alias_key(name), text, if_match=before.etag)
            return before, after.model_copy(update={"etag": etag})
        except Conflict:
            sleep(random.uniform(0.01, 0.05) * min(attempt + 1, 20))  # noqa: S311 - spreads writers, guards nothing
    raise Unreachable(f"alias {name} is being changed by others all the time; try again")


def check_release(store: Store, release: str) -> None:
    """Raises Refused where there is no such release."""
    releases.check_name(release)
    if not releases.exists(store, release):
        known = [found.name for found in releases.list_releases(store, unreadable=lambda said: None)[:5]]
        fix = f"the newest are {', '.join(known)}" if known else "promote one first"
        raise Refused(Problem("release", release, "there is no such release", fix))
    if not releases.whole(store, release):
        fix = "promote it again, which puts back what is missing"
        raise Refused(Problem("release", release, _no_weights(release), fix))


def _no_weights(release: str) -> str:
    return f"the weights of {release} are gone from the bucket, so nothing could load it"


def check_unnamed(store: Store, release: str) -> None:
    """Raises Refused where an alias names the release."""
    holders: Sequence[str] = named(store).get(release, [])
    if holders:
        fix = f"move it first: hyperpod-rl alias {holders[0]} RELEASE" if holders[0] == CURRENT else "hyperpod-rl alias canary --remove"
        raise Refused(Problem("release", release, f"alias {' and '.join(holders)} names it", fix))
