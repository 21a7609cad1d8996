"""Placeholders: filled exactly, refused when unknown or without a value, and nothing else ever changes."""

from __future__ import annotations

import copy
import re
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from config.names import Parameter
from config.placeholders import PLACEHOLDERS, fill, found, placeholder
from config.problems import Refused

VALUES = {
    "FILE_SYSTEM_ID": "fs-0123456789abcdef0",
    "FILE_SYSTEM_DNS_NAME": "fs-0.fsx.us-west-2.amazonaws.com",
    "FILE_SYSTEM_MOUNT_NAME": "abcdefgh",
}
# Text that holds no placeholder by itself.
plain = st.text(max_size=20).filter(lambda text: "${" not in text)
names = st.sampled_from(sorted(PLACEHOLDERS))
mixed = st.lists(plain | names.map(placeholder), max_size=5).map("".join)
objects = st.recursive(
    mixed | st.integers() | st.booleans() | st.none(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=8), inner, max_size=4),
    max_leaves=15,
)


def shape(value: Any) -> Any:
    """The object with each text replaced by a mark."""
    if isinstance(value, dict):
        return {key: shape(item) for key, item in value.items()}
    if isinstance(value, list):
        return [shape(item) for item in value]
    return "text" if isinstance(value, str) else value


@given(objects)
def test_filling_leaves_no_placeholder_and_touches_nothing_else(value: Any) -> None:
    before = copy.deepcopy(value)
    filled = fill(value, VALUES)
    assert value == before, "the input is left alone"
    assert list(found(filled)) == []
    assert shape(filled) == shape(value)
    if not list(found(value)):
        assert filled == value


@given(mixed)
def test_a_text_is_filled_part_by_part(text: str) -> None:
    expected = text
    for name, value in VALUES.items():
        expected = expected.replace(f"${{{name}}}", value)
    assert fill(text, VALUES) == expected


def test_values_are_not_read_for_placeholders_again() -> None:
    assert fill("${FILE_SYSTEM_ID}", VALUES | {"FILE_SYSTEM_ID": "${FILE_SYSTEM_DNS_NAME}"}) == "${FILE_SYSTEM_DNS_NAME}"


def test_tokens_of_cdk_pass_through() -> None:
    token = "${Token[TOKEN.123]}"
    assert fill({"handle": "${FILE_SYSTEM_ID}"}, VALUES | {"FILE_SYSTEM_ID": token}) == {"handle": token}


def test_what_is_missing_or_unknown_is_said_all_at_once() -> None:
    with pytest.raises(Refused) as refused:
        fill(["${FILE_SYSTEM_ID}", {"a": "${BUCKET}"}, "${FILE_SYSTEM_DNS_NAME}"], {"FILE_SYSTEM_ID": ""})
    sentences = [str(problem) for problem in refused.value.problems]
    assert len(sentences) == 3
    assert "known only after a deploy" in sentences[0]
    assert "there is no such placeholder" in sentences[1]
    assert Parameter.FILE_SYSTEM_DNS.value in sentences[2]


def test_an_undeclared_name_is_an_error_where_it_is_written() -> None:
    with pytest.raises(KeyError):
        placeholder("BUCKET")


def test_names_are_what_the_pattern_reads() -> None:
    for name in PLACEHOLDERS:
        assert re.fullmatch(r"[A-Z][A-Z0-9_]*", name)
        assert list(found(placeholder(name))) == [name]
