"""The application in front of Ray Serve LLM's: what it changes, and that it changes nothing else."""

from __future__ import annotations

import asyncio
import hashlib
import io
import json
import threading
import zipfile
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from config import ingress as delivered
from config import names
from serving.ingress import LARGEST_BODY, AliasObjects, Front, Reader, api_keys
from serving.routing import ALIAS_HEADER, RELEASE_HEADER, Alias, Aliases, read_alias, route
from tests.serving.asgi import Answer, call

OLD, NEW = "maze-grpo-s20-aaaaaaaa", "maze-grpo-s40-bbbbbbbb"


class Behind:
    """Ray's side: remembers what reached it."""

    routes = ("/v1/models",)

    def __init__(self, status: int = 200) -> None:
        self.status = status
        self.scopes: list[Any] = []
        self.bodies: list[bytes] = []

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        body, more = b"", True
        while more:
            message = await receive()
            body, more = body + message.get("body", b""), message.get("more_body", False)
        self.scopes.append(scope)
        self.bodies.append(body)
        await send({"type": "http.response.start", "status": self.status, "headers": [(b"content-type", b"application/json")]})
        await send({"type": "http.response.body", "body": body})


def front(aliases: Aliases | Callable[[], Aliases], behind: Behind, **options: Any) -> Front:
    async def read() -> Aliases:
        return aliases if isinstance(aliases, Aliases) else aliases()

    return Front(behind, read=read, **options)


def ask(app: Front, body: Any, **options: Any) -> Answer:
    return asyncio.run(call(app, body=body, **options))


def request(model: str, **more: Any) -> dict[str, Any]:
    return {"model": model, "messages": [{"role": "user", "content": "ä \ud800 …"}], "temperature": 1e-07, **more}


def test_an_alias_becomes_its_release_and_nothing_else_changes() -> None:
    behind = Behind()
    answer = ask(front(Aliases(Alias(NEW)), behind), request("visgym:current", seed=2**70), pieces=5)
    assert json.loads(behind.bodies[0]) == request(f"visgym:{NEW}", seed=2**70)
    assert answer.headers[RELEASE_HEADER] == NEW
    assert answer.headers[ALIAS_HEADER] == "current"
    assert dict(behind.scopes[0]["headers"])[b"content-length"] == str(len(behind.bodies[0])).encode()


@pytest.mark.parametrize(
    ("body", "headers"),
    [
        (b'{"model": "visgym",  "messages": []}', {}),
        (b'{"messages": [], "prompt": "visgym:current"}', {}),
        (b'{"model": "visgym:current"', {}),
        (b'["visgym:current"]', {}),
        (b'{"model": 7}', {}),
        (b"[" * 100_000, {}),
        (b'{"model":"visgym:current"}', {"content-type": "multipart/form-data; boundary=x"}),
        (b"\x1f\x8b...", {"content-encoding": "gzip"}),
        (b"", {}),
    ],
)
def test_other_requests_pass_byte_for_byte(body: bytes, headers: dict[str, str]) -> None:
    behind = Behind()
    answer = ask(front(Aliases(Alias(NEW)), behind), body, headers=headers)
    assert behind.bodies == [body]
    assert RELEASE_HEADER not in answer.headers
    assert answer.body == body


def test_a_release_by_its_own_name_passes_and_is_named() -> None:
    body = json.dumps(request(f"visgym:{OLD}")).encode() + b"  "
    behind = Behind()
    answer = ask(front(Aliases(Alias(NEW)), behind), body)
    assert behind.bodies == [body]
    assert answer.headers[RELEASE_HEADER] == OLD
    assert ALIAS_HEADER not in answer.headers
    assert RELEASE_HEADER not in ask(front(Aliases(), Behind(status=404)), body).headers, "an error is nobody's answer"
    assert RELEASE_HEADER not in ask(front(Aliases(), Behind()), request("visgym:a\r\nset-cookie: b")).headers


def test_reading_and_routes_pass() -> None:
    behind = Behind()
    app = front(Aliases(), behind)
    ask(app, b"", method="GET", path="/v1/models")
    assert behind.scopes[0]["path"] == "/v1/models"
    assert app.routes == behind.routes, "Ray looks at the application that it was given"
    with pytest.raises(AttributeError):
        app.add_exception_handler  # noqa: B018


def test_without_a_release_it_says_what_to_do() -> None:
    behind = Behind()
    answer = ask(front(Aliases(), behind), request("visgym:current"))
    assert (answer.status, behind.bodies) == (404, [])
    assert "hyperpod-rl promote" in answer.json()["error"]["message"]
    assert answer.json()["error"]["code"] == "model_not_found"
    assert ask(front(Aliases(Alias(OLD)), behind), request("visgym:canary")).status == 404

    def fails() -> Aliases:
        raise OSError("no route")

    assert ask(front(fails, behind), request("visgym:current")).status == 503
    assert ask(front(Aliases(), behind), b" " * (LARGEST_BODY + 1)).status == 413


def test_canary_gets_its_share() -> None:
    aliases = Aliases(Alias(OLD), Alias(NEW, 0.25))
    drawn = iter([0.0, 0.2499, 0.25, 0.99])
    app = front(aliases, Behind(), draw=lambda: next(drawn))
    answers = [ask(app, request("visgym:current")) for _ in range(4)]
    assert [a.headers[RELEASE_HEADER] for a in answers] == [NEW, NEW, OLD, OLD]
    assert [a.headers[ALIAS_HEADER] for a in answers] == ["canary", "canary", "current", "current"]
    assert ask(app, request("visgym:canary")).headers[RELEASE_HEADER] == NEW


@given(st.floats(0, 1), st.lists(st.text(min_size=1), min_size=1, max_size=5))
def test_one_user_stays_with_one_release(share: float, users: list[str]) -> None:
    aliases = Aliases(Alias(OLD), Alias(NEW, share))
    for user in users:
        first = route(aliases, "current", user=user, draw=lambda: 2.0)
        assert first is not None
        assert first == route(aliases, "current", user=user, draw=lambda: -1.0)
        assert (share > 0) or first.release == OLD
        assert (share < 1) or first.release == NEW


def test_users_are_spread_as_the_share_says() -> None:
    aliases = Aliases(Alias(OLD), Alias(NEW, 0.3))
    found = [route(aliases, "current", user=f"user-{n}", draw=lambda: 0.0) for n in range(2000)]
    canary = sum(each is not None and each.release == NEW for each in found)
    assert 500 < canary < 700


@pytest.mark.parametrize(
    "body", [b"[]", b"{", b'{"release": 3}', b'{"release": "a b"}', b'{"release": "a", "share": 2}', b'{"release":"a","share":true}']
)
def test_a_broken_alias_is_no_alias(body: bytes) -> None:
    with pytest.raises(ValueError):
        read_alias(body)


def test_an_alias_as_the_launcher_writes_it() -> None:
    assert read_alias(json.dumps({"alias": "canary", "release": NEW, "share": 0.1, "history": []}).encode()) == Alias(NEW, 0.1)
    assert read_alias(b'{"alias": "canary", "release": null, "share": null}') is None


# --- keys ---


def test_a_key_is_asked_for_of_everybody_but_a_browser_that_asks_first() -> None:
    keys = api_keys({"HYPERPOD_RL_API_KEYS": "first\nsecond"})
    assert hashlib.sha256(b"first").digest() in keys
    behind = Behind()
    app = front(Aliases(Alias(OLD)), behind, keys=keys)
    for header in (
        {},
        {"authorization": "Bearer third"},
        {"authorization": "first"},
        {"authorization": "Basic first"},
        {"authorization": "Bearer"},
    ):
        for method, path in (("POST", "/v1/chat/completions"), ("GET", "/v1/models"), ("GET", "/docs")):
            answer = ask(app, request("visgym"), headers=header, method=method, path=path)
            assert answer.status == 401
            assert answer.json()["error"]["code"] == "invalid_api_key"
            assert answer.headers["www-authenticate"] == "Bearer"
    assert behind.bodies == []
    assert ask(app, request("visgym:current"), headers={"authorization": "Bearer second"}).status == 200
    assert ask(app, request("visgym"), headers={"authorization": "bearer first"}).status == 200
    assert ask(app, b"", method="OPTIONS").status == 200


def test_an_endpoint_that_asks_for_a_key_does_not_start_without_one() -> None:
    for environment in ({}, {"HYPERPOD_RL_API_KEYS": " \n"}):
        with pytest.raises(RuntimeError, match="HYPERPOD_RL_API_KEYS holds no API key"):
            api_keys(environment)


@pytest.mark.parametrize(
    ("file", "known"),
    [
        ("one\ntwo\n", ["one", "two"]),
        ("one\r\n\r\n  two \r\n", ["one", "two"]),
        ("\ufeffone\ntwo", ["one", "two"]),
        ("# team a, until May\none\n\n#two\n", ["one"]),
        ("one\none\n", ["one"]),
        ("sch\u00fcssel\n\udcff\n", ["sch\u00fcssel", "\udcff"]),
    ],
)
def test_keys_as_files_hold_them(file: str, known: list[str]) -> None:
    digests = tuple(hashlib.sha256(key.encode("utf-8", "surrogateescape")).digest() for key in known)
    assert api_keys({"HYPERPOD_RL_API_KEYS": file}) == digests


@pytest.mark.parametrize("file", ["alice: 1a2b\n", "one\ntwo three\n"])
def test_a_name_beside_a_key_is_no_key(file: str) -> None:
    with pytest.raises(RuntimeError, match=r"one API key a line, and line [12] of it holds blanks") as refused:
        api_keys({"HYPERPOD_RL_API_KEYS": file})
    assert not any(word in str(refused.value) for word in ("alice", "1a2b", "three"))


def test_a_client_that_leaves_before_its_request_is_whole_reaches_nothing() -> None:
    behind = Behind()
    messages = [{"type": "http.request", "body": b'{"model": "visgym:current"', "more_body": True}, {"type": "http.disconnect"}]
    sent: list[Any] = []

    async def receive() -> Any:
        return messages.pop(0)

    async def send(message: Any) -> None:
        sent.append(message)

    scope = {"type": "http", "method": "POST", "path": "/v1/chat/completions", "headers": [(b"content-type", b"application/json")]}
    asyncio.run(front(Aliases(Alias(NEW)), behind)(scope, receive, send))
    assert (behind.bodies, sent) == ([], [])


# --- reading the aliases ---


def test_a_request_never_shares_a_reading_that_began_before_it_came() -> None:
    """The promise of a rollback: whoever asks after the write is answered by what was written."""
    value, begun, go = ["old"], threading.Semaphore(0), threading.Semaphore(0)
    reads = []

    def fetch() -> Aliases:
        seen = value[0]  # S3 answers with what stands when the call arrives
        reads.append(seen)
        begun.release()
        assert go.acquire(timeout=120)
        return Aliases(Alias(seen))

    async def work() -> list[str]:
        reader = Reader(fetch)
        early = asyncio.create_task(reader())
        await asyncio.to_thread(begun.acquire)
        value[0] = "new"
        late = [asyncio.create_task(reader()) for _ in range(100)]
        await asyncio.sleep(0)
        go.release(), go.release()
        found = [await early, *[await each for each in late]]
        return [each.current.release for each in found if each.current]

    assert asyncio.run(work()) == ["old"] + ["new"] * 100
    assert reads == ["old", "new"], "a hundred requests share one reading"


def test_what_was_read_stays_while_s3_does_not_answer() -> None:
    answers: list[Aliases | Exception] = [OSError("first"), Aliases(Alias(OLD)), OSError("later"), Aliases(Alias(NEW))]

    def fetch() -> Aliases:
        found = answers.pop(0)
        if isinstance(found, Exception):
            raise found
        return found

    async def work() -> list[Aliases]:
        reader = Reader(fetch)
        with pytest.raises(OSError, match="first"):
            await reader()
        found = [await reader() for _ in range(3)]  # the third does not wait for the reading that its coming starts
        while answers or reader._failing:
            await asyncio.sleep(0.001)
        return [*found, reader._known or Aliases()]

    assert asyncio.run(work()) == [Aliases(Alias(OLD)), Aliases(Alias(OLD)), Aliases(Alias(OLD)), Aliases(Alias(NEW))]


def test_nobody_waits_for_an_s3_that_does_not_answer_but_the_first() -> None:
    """Botocore takes some 10 s to give up: each request would, for as long as S3 is away."""
    open_gate = threading.Event()
    open_gate.set()
    answers: list[Aliases | Exception] = [Aliases(Alias(OLD)), OSError("away"), OSError("still"), Aliases(Alias(NEW))]

    def fetch() -> Aliases:
        assert open_gate.wait(timeout=60)
        found = answers.pop(0) if len(answers) > 1 else answers[0]
        if isinstance(found, Exception):
            raise found
        return found

    async def work() -> None:
        reader = Reader(fetch)
        assert (await reader(), await reader()) == (Aliases(Alias(OLD)),) * 2
        open_gate.clear()
        # Nobody lets a reading end meanwhile; the limit only ends a test that fails.
        at_once = [await asyncio.wait_for(reader(), timeout=30) for _ in range(50)]
        assert at_once == [Aliases(Alias(OLD))] * 50
        open_gate.set()
        while reader._failing:
            await asyncio.wait_for(reader(), timeout=30)
            await asyncio.sleep(0.001)
        assert await asyncio.wait_for(reader(), timeout=30) == Aliases(Alias(NEW)), "once S3 answers, each waits for a reading of its own"

    asyncio.run(work())


class S3Error(Exception):
    def __init__(self, status: int) -> None:
        self.response = {"ResponseMetadata": {"HTTPStatusCode": status}}


class S3:
    """get_object of two aliases, with S3's answers to conditions and to a role that may not list."""

    def __init__(self) -> None:
        self.objects: dict[str, bytes] = {}
        self.missing = 404
        self.transferred = 0

    def get_object(self, *, Bucket: str, Key: str, IfNoneMatch: str = "") -> dict[str, Any]:
        if Key not in self.objects:
            raise S3Error(self.missing)
        body = self.objects[Key]
        etag = hashlib.sha256(body).hexdigest()
        if etag == IfNoneMatch:
            raise S3Error(304)
        self.transferred += 1
        return {"Body": io.BytesIO(body), "ETag": etag}


@pytest.mark.parametrize("missing", [403, 404])
def test_alias_objects(missing: int) -> None:
    s3 = S3()
    s3.missing = missing
    read = AliasObjects("s3://bucket/lora-adapters/aliases", s3)
    assert read() == Aliases()
    s3.objects[names.alias_key("current")] = json.dumps({"release": OLD}).encode()
    assert read() == read() == Aliases(Alias(OLD))
    assert s3.transferred == 1, "an alias that did not change is not sent again"
    s3.objects[names.alias_key("canary")] = json.dumps({"release": NEW, "share": 0.5}).encode()
    s3.objects[names.alias_key("current")] = json.dumps({"release": NEW}).encode()
    assert read() == Aliases(Alias(NEW), Alias(NEW, 0.5))
    s3.missing = 500
    del s3.objects[names.alias_key("canary")]
    with pytest.raises(S3Error):
        read()
    s3.missing = 404
    assert read() == Aliases(Alias(NEW))


# --- how it gets there ---


def test_the_archive_is_the_same_bytes_and_stands_alone() -> None:
    assert delivered.archive() == delivered.archive()
    with zipfile.ZipFile(io.BytesIO(delivered.archive())) as archive:
        names_in = archive.namelist()
        # Ray removes the one folder at the top of an archive from S3.
        assert {name.split("/")[0] for name in names_in} == {"ingress"}
        assert "ingress/serving/__init__.py" in names_in
        sources = {name: archive.read(name).decode() for name in names_in}
    imported = {line.split()[1] for text in sources.values() for line in text.splitlines() if line.startswith(("import ", "from "))}
    assert not {name for name in imported if name.split(".")[0] in ("config", "training", "local", "cli")}
    assert {name for name in imported if name.startswith("serving")} <= {"serving.routing"}
    assert delivered.key().startswith(names.ADAPTER_PREFIX), "the endpoint's role reads nothing else"


@pytest.mark.parametrize("body", [b"", b"[]", b"[" * 100_000, b'{"release": "../x"}', b'{"release": "maze-grpo-s1-00000001", "share": 7}'])
def test_a_garbled_alias_changes_nothing_and_a_garbled_canary_stops_nobody(body: bytes) -> None:
    s3 = S3()
    current, canary = names.alias_key("current"), names.alias_key("canary")
    s3.objects |= {current: json.dumps({"release": OLD}).encode(), canary: body}
    read = AliasObjects("s3://bucket/lora-adapters/aliases", s3)
    assert read() == Aliases(Alias(OLD), None)
    s3.objects[current] = body
    for _ in range(2):
        assert read() == Aliases(Alias(OLD), None), "what was known before stays"
    with pytest.raises((ValueError, RecursionError)):
        AliasObjects("s3://bucket/lora-adapters/aliases", s3)()
    s3.objects |= {current: json.dumps({"release": NEW}).encode(), canary: json.dumps({"release": OLD, "share": 0.5}).encode()}
    assert read() == Aliases(Alias(NEW), Alias(OLD, 0.5))
