"""A release: an export that passed the gate, under an immutable name, with its lineage beside it in `release.json`."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from typing import Final, Literal

from pydantic import BaseModel, ConfigDict, ValidationError

from config import names
from config.digest import value_digest
from config.problems import Failed, Problem, Refused
from serving.store import Store

FORMAT: Final = 1


class Part(BaseModel):
    """A frozen piece of a release's record; what a later version of the product adds is passed over."""

    model_config = ConfigDict(frozen=True, extra="ignore")


class File(Part):
    """One file of the adapter."""

    name: str
    size_bytes: int
    sha256: str


class BaseModelUsed(Part):
    """The base model that the adapter was trained on."""

    path: str = ""
    repository: str = ""
    subfolder: str = ""
    revision: str = ""


class Verdict(Part):
    """What the gate said of this export when it was released. Rates are shares of mazes really solved."""

    passed: bool
    at: str
    digest: str = ""
    reasons: tuple[str, ...] = ()
    baseline_rate: float | None = None
    candidate_rate: float | None = None
    fresh_rate: float | None = None
    p_value: float | None = None
    max_turns: int | None = None


class Release(Part):
    """Content of `release.json`: what this is, where it comes from, who published it and when (UTC, ISO 8601)."""

    format: int = FORMAT
    name: str
    adapter: str
    step: int
    run_id: str
    environment: str
    content_digest: str
    files: tuple[File, ...]
    rank: int
    alpha: float
    base_model: BaseModelUsed = BaseModelUsed()
    image: str = ""
    image_digest: str | None = None
    code_commit: str = "unknown"
    record_sha256: str = ""
    gate: Verdict | None = None
    override: str | None = None
    trainer: Literal["skyrl", "stand-in"] = "skyrl"
    published_by: str = "unknown"
    published_at: str = ""

    def text(self) -> bytes:
        """As it stands in the bucket."""
        return (json.dumps(self.model_dump(mode="json"), ensure_ascii=False, indent=1) + "\n").encode()

    def same_content(self, other: Release) -> bool:
        """Whether both describe the same adapter: who published it, and when, may differ."""
        return (self.name, self.content_digest, self.files) == (other.name, other.content_digest, other.files)


def content_digest(files: Sequence[File]) -> str:
    """`sha256:…` over names and digests of an adapter's files: its beginning stands in the release's name."""
    return value_digest({file.name: file.sha256 for file in files})


def check_name(name: str) -> str:
    """A release's name has the form `<adapter>-s<step>-<digest8>`. Raises Refused."""
    if names.RELEASE.fullmatch(name) is None:
        raise Refused(
            Problem("release", name, "a release is named <adapter>-s<step>-<8 hexadecimal digits>", "hyperpod-rl releases lists them")
        )
    return name


def exists(store: Store, name: str) -> bool:
    """Whether the endpoint can load it: its configuration, the last file to be written, is there."""
    return store.head(names.release_key(name, names.ADAPTER_CONFIG)) is not None


def whole(store: Store, name: str) -> bool:
    """Whether users could be sent to it: weights that somebody deleted by hand leave a configuration that loads nothing."""
    return exists(store, name) and store.head(names.release_key(name, names.ADAPTER_WEIGHTS)) is not None


def read(store: Store, name: str) -> Release | None:
    """One release; None if there is none. Raises Failed if its record is missing or is none."""
    if not exists(store, name):
        return None
    return _record(store, name)


def list_releases(store: Store, *, unreadable: Callable[[str], None] | None = None) -> list[Release]:
    """Every release, the newest first. A folder without `release.json` was not published by this product and is left out.

    A record that is none is told to `unreadable`, so that one of them does not hide the others; without it Failed is raised.
    """
    keys = set(store.list(names.ADAPTER_PREFIX))
    found = []
    for key in sorted(keys):
        folder, _, file = key.removeprefix(names.ADAPTER_PREFIX).rpartition("/")
        if file == names.ADAPTER_CONFIG and names.RELEASE.fullmatch(folder) and names.release_key(folder, names.RELEASE_RECORD) in keys:
            try:
                found.append(_record(store, folder))
            except Failed as failed:
                if unreadable is None:
                    raise
                unreadable(str(failed))
    return sorted(found, key=lambda release: (release.published_at, release.name), reverse=True)


def _record(store: Store, name: str) -> Release:
    key = names.release_key(name, names.RELEASE_RECORD)
    found = store.get(key)
    if found is None:
        raise Failed(f"release {name} has no {names.RELEASE_RECORD} (s3://{store.bucket}/{key}); promote its export again")
    return parsed(found[0], where=f"s3://{store.bucket}/{key}")


def parsed(text: bytes, *, where: str) -> Release:
    """The record in a text. Raises Failed, naming where it came from."""
    try:
        found = Release.model_validate_json(text)
    except ValidationError as error:
        fix = "hyperpod-rl retire removes the release, and its export can be promoted again"
        raise Failed(f"{where} is no record of a release ({error.error_count()} errors in it); {fix}") from None
    if found.format > FORMAT:
        raise Failed(f"{where} was written by a newer hyperpod-rl (format {found.format}, and this one reads {FORMAT}); update this one")
    return found
