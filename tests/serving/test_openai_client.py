"""Endpoints that answer something else than they should, and what a user may write for one."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest

from config.problems import Refused, Unreachable
from serving.openai_client import Endpoint, connected
from tests.serving.openai_server import serving


def said(url: str, **more: Any) -> str:
    async def work() -> str:
        async with connected(Endpoint(url, "m", tries=1, **more), connections=1) as client:
            return (await client.chat([{"role": "user", "content": "hello"}], temperature=0, max_tokens=1, user="u")).text

    return asyncio.run(work())


def completion(content: Any) -> tuple[int, dict[str, str], Any]:
    return 200, {}, {"choices": [{"message": {"content": content}}]}


@pytest.mark.parametrize(
    ("content", "text"),
    [("yes", "yes"), (None, ""), ("", ""), ([{"type": "text", "text": "ye"}, {"type": "text", "text": "s"}, 7, {"text": None}], "yes")],
)
def test_what_was_said(content: Any, text: str) -> None:
    with serving(answer=lambda body: completion(content)) as server:
        assert said(server.url) == text


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        ("[" * 100_000, "is no OpenAI endpoint"), ('{"a":' * 100_000, "is no OpenAI endpoint"), ("", "is no OpenAI endpoint"),
        ("[]", "is no OpenAI endpoint"), ("null", "is no OpenAI endpoint"), ("<html>", "is no OpenAI endpoint"),
        ("{}", "no chat completion"), ('{"choices": null}', "no chat completion"), ('{"choices": [{"message": 1}]}', "no chat completion"),
        ('{"error": {"message": "overloaded"}}', "no chat completion: .*overloaded"),
    ],
)  # fmt: skip
def test_what_is_no_answer_is_one_sentence(body: str, expected: str) -> None:
    with serving(answer=lambda _: (200, {}, body)) as server, pytest.raises(Unreachable, match=expected):
        said(server.url)


@pytest.mark.parametrize("text", ["[" * 100_000, "7", "[1, 2]", '{"error": null}', '{"error": ["a"]}'])
def test_an_error_of_any_form_is_told(text: str) -> None:
    with serving(answer=lambda _: (418, {}, text)) as server, pytest.raises(Refused, match="refuses the request with status 418"):
        said(server.url)


@pytest.mark.parametrize("listed", [None, "abc", {"id": "m"}, 7])
def test_a_list_of_models_that_is_none(listed: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    async def work(url: str) -> list[str]:
        async with connected(Endpoint(url, "m", tries=1), connections=1) as client:
            monkeypatch.setattr(client, "_asked", lambda *_: asked())
            return await client.models()

    async def asked() -> Any:
        return {"data": listed}, {}, 0.0

    with pytest.raises(Unreachable, match="no list of models"):
        asyncio.run(work("http://127.0.0.1:9"))


@pytest.mark.parametrize("key", ["sk-1\n", " sk-1 ", "sk-1\r\n"])
def test_the_line_break_of_a_key_file_is_no_part_of_the_key(key: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", key)
    with serving(answer=lambda body: completion("yes")) as server:
        said(server.url)
        assert server.headers[0]["Authorization"] == "Bearer sk-1"


@pytest.mark.parametrize("key", ["sk\n1", "sk\r\nx-evil: 1", "sk\x7f"])
def test_a_key_that_no_header_can_carry_is_refused_and_not_shown(key: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", key)
    with pytest.raises(Refused, match=r"\$OPENAI_API_KEY: it holds control characters") as refused:
        said("http://127.0.0.1:9")
    assert "sk" not in str(refused.value)


def test_no_proxy_stands_between_this_machine_and_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("http_proxy", "HTTP_PROXY"):
        monkeypatch.setenv(name, "http://127.0.0.1:9")
    for name in ("no_proxy", "NO_PROXY"):
        monkeypatch.delenv(name, raising=False)
    with serving(answer=lambda body: completion("yes")) as server:
        assert said(server.url) == "yes"
    with pytest.raises(Unreachable, match=r"127\.0\.0\.1:9"):  # any other host is asked through it
        said("http://models.example.com")


@pytest.mark.parametrize(
    "url",
    ["", "localhost:8000", "ftp://host", "http://", "http://host/v1?key=1", "http://[::1", "http://host:abc", "http://host:99999",
     "http://ho st/", "http://h\udcff/", "http://host/\n"],
)  # fmt: skip
def test_what_is_no_endpoint_is_refused(url: str) -> None:
    with pytest.raises(Refused, match="--endpoint"):
        Endpoint(url, "base")


@pytest.mark.parametrize("model", ["", "  ", "m\udcff", "a\nb", "\x1b[31m"])
def test_a_model_that_has_no_name_is_refused(model: str) -> None:
    with pytest.raises(Refused, match="--model"):
        Endpoint("http://h", model)


def test_everything_that_is_wrong_with_an_endpoint_is_said_at_once() -> None:
    with pytest.raises(Refused) as refused:
        Endpoint("h", "")
    assert [problem.field for problem in refused.value.problems] == ["--endpoint", "--model"]
    assert json.dumps([problem.fix for problem in refused.value.problems])
