"""Writes the digests of a built image into the environment's file, and leaves every other byte of it as it is."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Mapping
from pathlib import Path

import yaml

from config.load import parse
from config.problems import Refused


class NotPinned(Exception):
    """The file could not be changed; the message is the lines to write into it by hand."""


def pin(path: Path, values: Mapping[str, str]) -> bool:
    """Set keys of the file's `image` section. Returns whether the file changed; it changes whole or not at all.

    Raises NotPinned where that would change anything else, or the file cannot be written.
    """
    by_hand = "image:\n" + "".join(f"  {name}: {value}\n" for name, value in values.items())
    try:
        text = path.read_text(encoding="utf-8")
        changed = text
        for name, value in values.items():
            changed = _with(changed, name, value)
        before, after = parse(text), parse(changed)
    except (OSError, UnicodeDecodeError, yaml.YAMLError, Refused) as error:
        raise NotPinned(f"{path} could not be changed ({error}); write into it:\n{by_hand}") from None
    if after != before.model_copy(update={"image": before.image.model_copy(update=dict(values))}):
        raise NotPinned(f"{path} is written in a way that is left alone; write into it:\n{by_hand}")
    if changed == text:
        return False
    try:
        _replace(path, changed)
    except OSError as error:
        raise NotPinned(f"{path} could not be written ({error.strerror or error}); write into it:\n{by_hand}") from None
    return True


def _with(text: str, name: str, value: str) -> str:
    """The text with `image.<name>` set, by the places that PyYAML's parser names."""
    root = yaml.compose(text, Loader=yaml.SafeLoader)
    assert isinstance(root, yaml.MappingNode)
    section = next((node for key, node in root.value if key.value == "image"), None)
    if section is None or not isinstance(section, yaml.MappingNode) or not section.value:
        # Nothing there, or `image:` with nothing in it, which the comparison then refuses.
        ending = "" if text.endswith("\n") or not text else "\n"
        return f"{text}{ending}image:\n  {name}: {value}\n"
    for key, node in section.value:
        if key.value == name:
            return text[: node.start_mark.index] + value + text[node.end_mark.index :]
    first = section.value[0][0].start_mark
    if section.flow_style:
        return f"{text[: first.index]}{name}: {value}, {text[first.index :]}"
    return f"{text[: first.index]}{name}: {value}\n{' ' * first.column}{text[first.index :]}"


def _replace(path: Path, text: str) -> None:
    """Whole or not at all: a reader never sees half of it. A link stays one."""
    target = path.resolve()
    handle, temporary = tempfile.mkstemp(dir=target.parent, prefix=f".{target.name}.")
    try:
        with os.fdopen(handle, "w", encoding="utf-8") as file:
            file.write(text)
        Path(temporary).chmod(target.stat().st_mode & 0o777)
        Path(temporary).replace(target)
    except BaseException:
        Path(temporary).unlink(missing_ok=True)
        raise
