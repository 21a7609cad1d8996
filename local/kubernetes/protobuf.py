"""Bodies in Kubernetes' protobuf, which `kubectl create secret` and its like send whatever the server says it accepts.

The messages are described inside kubectl itself: Go programs carry the descriptors of every API type, gzipped
(https://kubernetes.io/docs/reference/using-api/api-concepts/#protobuf-encoding). Answers are JSON always, which every client takes.
"""

from __future__ import annotations

import base64
import datetime
import json
import re
import zlib
from collections.abc import Callable, Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import Any, Final

from config.problems import Unreachable
from local.kubernetes.errors import Rejected
from local.kubernetes.schemas import definitions

CONTENT_TYPE: Final = "application/vnd.kubernetes.protobuf"
_MAGIC: Final = b"k8s\x00"
_GZIP: Final = re.compile(rb"\x1f\x8b\x08\x00\x00\x00\x00\x00")
_LARGEST: Final = 1 << 20  # of one descriptor, gzipped; core/v1 has 77 KB unpacked
_ENVELOPE: Final = "k8s.io.apimachinery.pkg.runtime.Unknown"
_META: Final = "k8s.io.apimachinery.pkg.apis.meta.v1"
_SCHEMAS: Final = "k8s.io."  # a message k8s.io.api.core.v1.Pod is the definition io.k8s.api.core.v1.Pod


def decode(body: bytes) -> dict[str, Any]:
    """The object in a body, as its JSON would be. Raises Rejected."""
    from google.protobuf.message import DecodeError  # type: ignore[import-untyped,unused-ignore]

    if not body.startswith(_MAGIC):
        raise Rejected("the object provided is unrecognized: it does not begin as Kubernetes' protobuf does", reason="BadRequest")
    try:
        envelope = _message(_ENVELOPE)
        envelope.ParseFromString(body[len(_MAGIC) :])
        api_version, kind = str(envelope.typeMeta.apiVersion), str(envelope.typeMeta.kind)
        made = _message(_name(api_version, kind))
        made.ParseFromString(envelope.raw)
        content = _fields(made)
    except (DecodeError, ValueError) as error:
        raise Rejected(f"the object provided is unrecognized: {error}", reason="BadRequest") from None
    return {"apiVersion": api_version, "kind": kind, **content}


def _name(api_version: str, kind: str) -> str:
    group, _, version = api_version.rpartition("/")
    own = f"k8s.io.api.{group.split('.')[0] or 'core'}.{version}.{kind}"
    return own if own in _names() else f"{_META}.{kind}"  # DeleteOptions and its like belong to every group


def _message(name: str) -> Any:
    """An empty message. Raises Rejected (UnsupportedMediaType) where nothing describes it."""
    from google.protobuf import message_factory  # type: ignore[import-untyped,unused-ignore]

    if name not in _names():
        text = f"protobuf of {name.rpartition('.')[2]} cannot be read on this machine; send application/json or application/yaml"
        raise Rejected(text, reason="UnsupportedMediaType")
    return message_factory.GetMessageClass(_pool().FindMessageTypeByName(name))()


@cache
def _files() -> tuple[Any, ...]:
    from training.kubernetes import kubectl

    try:
        return tuple(_described(Path(kubectl()).read_bytes()))
    except (Unreachable, OSError):
        return ()


def _described(program: bytes) -> Iterator[Any]:
    """The descriptors of Kubernetes' API inside a Go program."""
    from google.protobuf.descriptor_pb2 import FileDescriptorProto  # type: ignore[import-untyped,unused-ignore]
    from google.protobuf.message import DecodeError  # type: ignore[import-untyped,unused-ignore]

    for found in _GZIP.finditer(program):
        try:
            raw = zlib.decompressobj(wbits=31).decompress(program[found.start() : found.start() + _LARGEST])
            file = FileDescriptorProto.FromString(raw)
        except (zlib.error, DecodeError):
            continue
        if file.name.startswith("k8s.io/") and file.package.startswith(_SCHEMAS):
            # Of gogo's, which only tells how Go writes them.
            others = [name for name in file.dependency if name.startswith("k8s.io/")]
            del file.dependency[:]
            file.dependency.extend(others)
            yield file


@cache
def _names() -> frozenset[str]:
    return frozenset(f"{file.package}.{message.name}" for file in _files() for message in file.message_type)


@cache
def _pool() -> Any:
    from google.protobuf import descriptor_database, descriptor_pool  # type: ignore[import-untyped,unused-ignore]

    database = descriptor_database.DescriptorDatabase()
    for file in _files():
        database.Add(file)
    return descriptor_pool.DescriptorPool(database)


# ---- messages to JSON ----------------------------------------------------------------------------------------------


def _time(message: Any) -> str | None:
    if not message.ListFields():
        return None
    when = datetime.datetime.fromtimestamp(message.seconds, datetime.UTC) + datetime.timedelta(microseconds=message.nanos // 1000)
    return when.isoformat(timespec="microseconds" if message.DESCRIPTOR.name == "MicroTime" else "seconds").replace("+00:00", "Z")


def _json(raw: bytes) -> Any:
    return json.loads(raw) if raw else None


# Types that are no object in JSON; None stands for "not there".
_SPECIAL: Mapping[str, Callable[[Any], Any]] = {
    "k8s.io.apimachinery.pkg.api.resource.Quantity": lambda message: message.string or None,
    "k8s.io.apimachinery.pkg.util.intstr.IntOrString": lambda message: message.strVal if message.type else message.intVal,
    f"{_META}.Time": _time,
    f"{_META}.MicroTime": _time,
    f"{_META}.FieldsV1": lambda message: _json(message.Raw),
    "k8s.io.apimachinery.pkg.runtime.RawExtension": lambda message: _json(message.raw),
}


def _fields(message: Any) -> dict[str, Any]:
    """The fields of a message. One that its JSON schema does not know is a Go struct's embedded part: its fields are the parent's."""
    known = _properties(message.DESCRIPTOR.full_name)
    found: dict[str, Any] = {}
    for field, value in message.ListFields():
        content = _content(field, value)
        if content is None:
            continue
        name = known.get(field.name.lower()) if known else field.name
        if name is not None:
            found[name] = content
        elif isinstance(content, dict):
            found |= content
        else:
            found[field.name] = content  # the check of the object says that nobody knows it
    return found


@cache
def _properties(full_name: str) -> Mapping[str, str]:
    """Names in JSON by the lower-case name: a few messages write `uID` for `uid`. Empty for an embedded struct, which no schema names."""
    schema = definitions().get(f"io.k8s.{full_name.removeprefix(_SCHEMAS)}", {})
    return {name.lower(): name for name in schema.get("properties", {})}


def _content(field: Any, value: Any) -> Any:
    if field.message_type is not None and field.message_type.GetOptions().map_entry:
        of = field.message_type.fields_by_name["value"]
        return {key: _one(of, item) for key, item in value.items()}
    if field.is_repeated:
        return [_one(field, item) for item in value]
    # Go writes every text that is not a pointer, empty or not; JSON leaves the empty ones out.
    return None if value == "" else _one(field, value)


def _one(field: Any, value: Any) -> Any:
    if field.message_type is not None:
        special = _SPECIAL.get(field.message_type.full_name)
        if special is not None:
            return special(value)
        if [each.name for each in field.message_type.fields] == ["items"]:
            return list(value.items)  # a named list of texts, as the values of `extra`
        return _fields(value)
    return base64.b64encode(value).decode() if isinstance(value, bytes) else value
