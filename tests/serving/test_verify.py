"""What `verify` sees and what it does not let pass: an endpoint whose models play as they are told, and a bucket in memory."""

from __future__ import annotations

import functools
import hashlib
import json
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import pytest

from cli.main import run
from config import names
from config.load import load
from config.problems import Refused
from serving import aliases, evaluate, tasks, verify
from serving.openai_client import Endpoint
from serving.releases import File, Release, Verdict, content_digest
from serving.routing import RELEASE_HEADER
from serving.store import Store
from tests.serving.bucket import memory_store
from tests.serving.http_endpoint import serving
from training.maze import HELD_OUT, maze
from training.maze_task import message

BASE = "visgym"
Player = Callable[[str], str]
MAZES = 12


def utterance(action: str) -> str:
    return f"<observation>a maze</observation><action>{action}</action>"


@functools.lru_cache(maxsize=1)
def best() -> Mapping[str, tuple[int, str]]:
    """Picture as it is sent -> the maze's seed and the best action."""
    found = {}
    for seed in [*HELD_OUT[:MAZES], *range(2_000_000, 2_000_016)]:
        drawn = maze(seed)
        for square, action in drawn.oracle().items():
            from training.pictures import png

            url = message("", png(drawn.picture(square)))["content"][1]["image_url"]["url"]
            found[url] = (seed, "('stop', 'stop')" if action == 4 else f"('move', {action})")
    return found


def stops(url: str) -> str:
    """A base model that can do nothing yet."""
    return utterance("('stop', 'stop')")


def solves(url: str) -> str:
    return utterance(best()[url][1])


def solves_some(url: str) -> str:
    """A third of the mazes."""
    seed, action = best()[url]
    return utterance(action) if seed % 3 == 0 else utterance("('move', 0)")


@dataclass
class Models:
    """An OpenAI endpoint. `players` by adapter, '' the base; `says` names the release in the header."""

    players: dict[str, Player]
    named: dict[str, str] = field(default_factory=dict)
    unlisted: set[str] = field(default_factory=set)
    says: bool = True
    pictures: int = 99
    lists: int = 200

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] == "lifespan":
            for _ in range(2):
                await send({"type": f"{(await receive())['type']}.complete"})
            return
        body, more = b"", True
        while more:
            part = await receive()
            body, more = body + part.get("body", b""), part.get("more_body", False)
        headers = [(b"content-type", b"application/json")]
        if scope["path"] == "/v1/models":
            ids = [BASE, *(f"{BASE}:{name}" for name in self.players if name and name not in self.unlisted)]
            status, content = self.lists, {"data": [{"id": each} for each in ids]}
        else:
            asked = json.loads(body)
            adapter = asked["model"].partition(":")[2]
            adapter = self.named.get(adapter, adapter)
            if len(asked["messages"][::2]) > self.pictures:
                status, content = 400, {"error": {"message": f"At most {self.pictures} image(s) may be provided in one prompt."}}
            elif adapter not in self.players:
                status, content = 404, {"error": {"message": f"no model {adapter}"}}
            else:
                said = self.players[adapter](asked["messages"][-1]["content"][1]["image_url"]["url"])
                status, content = 200, {"choices": [{"message": {"content": said}}]}
                if self.says and adapter:
                    headers.append((RELEASE_HEADER.encode(), adapter.encode()))
        await send({"type": "http.response.start", "status": status, "headers": headers})
        await send({"type": "http.response.body", "body": json.dumps(content).encode()})


def publish(
    store: Store, weights: bytes = b"weights of run a", *, rate: float | None = 1.0, step: int = 20, turns: int | None = None
) -> str:
    """A release as `promote` leaves it."""
    files = {names.ADAPTER_WEIGHTS: weights, names.ADAPTER_CONFIG: b'{"r": 8}'}
    entries = tuple(File(name=name, size_bytes=len(data), sha256=hashlib.sha256(data).hexdigest()) for name, data in files.items())
    digest = content_digest(entries)
    name = names.release("maze-grpo", step=step, digest=digest)
    gate = Verdict(passed=True, at="2026-11-29T00:00:00+00:00", candidate_rate=rate, max_turns=turns) if rate is not None else None
    record = Release(
        name=name,
        adapter="maze-grpo",
        step=step,
        run_id="a",
        environment="local",
        content_digest=digest,
        files=entries,
        rank=8,
        alpha=8,
        gate=gate,
    )
    for file, data in {**files, names.RELEASE_RECORD: record.text()}.items():
        store.put(names.release_key(name, file), data)
    return name


@pytest.fixture(autouse=True)
def fewer_prompts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(verify, "PROMPTS", 16)


@pytest.fixture
def store() -> Store:
    return memory_store()


def look(models: Models, store: Store, model: str, *, mazes: int = MAZES) -> verify.Report:
    env = load("local")
    wanted = evaluate.plan(env, mazes=mazes, max_turns=17)
    task = tasks.task(env, "built-in", max_turns=17)
    with serving(models) as url:
        return verify.verify(Endpoint(url, model, tries=1), store, wanted, task)


def failed(report: verify.Report) -> list[str]:
    return [check.name for check in report.checks if check.passed is False]


def test_a_release_that_is_what_it_says(store: Store) -> None:
    release = publish(store)
    aliases.move(store, "current", release, reason="test", by="t")
    models = Models({"": stops, release: solves}, named={"current": release})
    report = look(models, store, f"{BASE}:current")
    assert report.passed, [check.line() for check in report.checks]
    assert [check.name for check in report.checks] == ["bytes", "listed", "applied", "alias current", "solve rate"]
    assert report.checks[2].said.startswith("on 16 of 16 prompts")
    assert "solve rate 0.917" in report.checks[4].said
    assert "the gate saw 1.000" in report.checks[4].said
    assert json.dumps(report.document())
    by_name = look(models, store, f"{BASE}:{release}")
    assert by_name.passed
    assert len(by_name.checks) == 4


def test_an_adapter_that_changes_nothing(store: Store) -> None:
    """All zero, or ignored by the endpoint: from outside both are the base model under another name."""
    release = publish(store)
    report = look(Models({"": stops, release: stops}), store, f"{BASE}:{release}")
    assert failed(report) == ["applied", "solve rate"]
    assert "on 0 of 16 prompts" in report.checks[2].said
    assert "it is not applied, or it changes nothing" in report.checks[2].said
    assert not report.passed


def test_another_runs_adapter_under_this_name(store: Store) -> None:
    release, other = publish(store), publish(store, b"weights of run b", step=40)
    served = Models({"": stops, release: solves})
    assert look(served, store, f"{BASE}:{release}").passed
    kept = dict(store.client.objects)
    for files in ([names.ADAPTER_WEIGHTS], [names.ADAPTER_WEIGHTS, names.RELEASE_RECORD]):
        for file in files:
            content = store.get(names.release_key(other, file))
            assert content is not None
            store.put(names.release_key(release, file), content[0])
        report = look(served, store, f"{BASE}:{release}")
        assert failed(report) == ["bytes"], files
        assert report.checks[0].said.endswith(("not what was released under this name", f"not of {release}"))
    # A record that was forged to go with the bytes gives itself away by the name.
    store.client.objects.update(kept)
    forged = json.loads(kept[names.release_key(other, names.RELEASE_RECORD)][0]) | {"name": release}
    record = json.loads(kept[names.release_key(release, names.RELEASE_RECORD)][0])
    forged |= {"content_digest": record["content_digest"], "step": record["step"]}
    store.put(names.release_key(release, names.RELEASE_RECORD), json.dumps(forged).encode())
    store.put(names.release_key(release, names.ADAPTER_WEIGHTS), b"weights of run b")
    assert failed(look(served, store, f"{BASE}:{release}")) == ["bytes"]


def test_an_endpoint_that_plays_worse_than_the_gate_saw(store: Store) -> None:
    """What the bucket cannot show: an engine that loaded something else, or garbles what it loads."""
    release = publish(store)
    report = look(Models({"": stops, release: solves_some}), store, f"{BASE}:{release}")
    assert failed(report) == ["solve rate"]
    assert "the gate saw 1.000" in report.checks[-1].said


def test_an_endpoint_without_it(store: Store) -> None:
    release = publish(store)
    report = look(Models({"": stops}), store, f"{BASE}:{release}")
    assert failed(report) == ["listed", "applied", "solve rate"]
    hidden = look(Models({"": stops, release: solves}, unlisted={release}), store, f"{BASE}:{release}")
    assert failed(hidden) == ["listed"]


def test_an_alias_that_leads_elsewhere(store: Store) -> None:
    release, other = publish(store), publish(store, b"other", step=40)
    aliases.move(store, "current", release, reason="test", by="t")
    players: dict[str, Player] = {"": stops, release: solves, other: solves}
    report = look(Models(players, named={"current": other}), store, f"{BASE}:current")
    assert failed(report) == ["alias current"]
    assert report.checks[3].said == f"{other} answers, not {release}"
    assert failed(look(Models(players, named={"current": release}, says=False), store, f"{BASE}:current")) == ["alias current"]
    assert failed(look(Models(players), store, f"{BASE}:current")) == ["alias current"]


def test_a_base_model_that_never_says_the_same_proves_nothing(store: Store) -> None:
    release = publish(store)
    said: Iterator[int] = iter(range(10**9))
    report = look(Models({"": lambda url: f"{next(said)}", release: solves}), store, f"{BASE}:{release}")
    assert report.checks[2].passed is None
    assert report.passed is False, "what could not be proven is not proven"


def test_a_release_without_a_verdict_is_not_compared(store: Store) -> None:
    release = publish(store, rate=None)
    report = look(Models({"": stops, release: solves}), store, f"{BASE}:{release}")
    assert report.checks[-1].passed is None
    assert "carries no verdict" in report.checks[-1].said
    assert report.passed, "the rest was proven"


@pytest.mark.parametrize(
    ("model", "said"),
    [
        (BASE, "this is the base model alone"),
        (f"{BASE}:current", "the alias current names no release"),
        (f"{BASE}:A b", "a release is named"),
    ],
)
def test_models_that_cannot_be_verified(store: Store, model: str, said: str) -> None:
    with pytest.raises(Refused, match=said):
        verify.chosen(store, model)


def test_a_release_that_is_not_there(store: Store) -> None:
    gone = "maze-grpo-s20-00000000"
    report = look(Models({"": stops, gone: solves}), store, f"{BASE}:{gone}", mazes=1)
    assert failed(report) == ["bytes"]
    assert report.checks[0].said == f"there is no release {gone}"


def test_the_command(store: Store, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr("serving.store.open_store", lambda env: store)
    release = publish(store)
    with serving(Models({"": stops, release: solves})) as url:
        base = ["--env", "local", "verify", "--endpoint", url, "--mazes", "6", "--max-turns", "17"]
        assert run([*base, "--model", f"{BASE}:{release}"]) == 0
        assert capsys.readouterr().out.splitlines()[-1] == f"release {release} is what answers"
        store.put(names.release_key(release, names.ADAPTER_WEIGHTS), b"other bytes")
        assert run([*base, "--model", f"{BASE}:{release}", "--json"]) == 1
        said = json.loads(capsys.readouterr().out)
        assert (said["passed"], [check["name"] for check in said["checks"] if check["passed"] is False]) == (False, ["bytes"])
        assert run(base) == 2
        assert "the alias current names no release" in capsys.readouterr().err


def test_an_endpoint_with_too_little_room_fails_by_name(store: Store) -> None:
    """At most three pictures in one prompt, as vLLM words it: the mazes are played to there, and nothing falls over."""
    release = publish(store)
    report = look(Models({"": stops, release: solves}, pictures=3), store, f"{BASE}:{release}")
    assert failed(report) == ["applied", "solve rate"]
    assert "it does not take a maze of 8 turns (At most 3 image(s)" in report.checks[2].said
    refused = look(Models({"": stops, release: solves}, pictures=0), store, f"{BASE}:{release}")
    assert failed(refused) == ["applied", "solve rate"]
    assert "does not take even the first prompt" in refused.checks[-1].said


def test_an_endpoint_that_lists_nothing_is_looked_at_to_the_end(store: Store) -> None:
    release = publish(store)
    report = look(Models({"": stops, release: solves}, lists=404), store, f"{BASE}:{release}")
    assert failed(report) == ["listed"]


def test_other_turns_than_the_gates_are_not_compared(
    store: Store, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("serving.store.open_store", lambda env: store)
    release = publish(store, turns=17)
    with serving(Models({"": stops, release: solves})) as url:
        base = ["--env", "local", "verify", "--endpoint", url, "--mazes", "4", "--model", f"{BASE}:{release}"]
        assert run([*base, "--json"]) == 0  # with 17 turns, as the gate played, not with the environment's 15
        assert json.loads(capsys.readouterr().out)["served"]["max_turns"] == 17
        assert run([*base, "--max-turns", "3"]) == 0
    said = capsys.readouterr().out
    assert "not judged  solve rate: solve rate 0.000" in said
    assert "with 3 turns; the gate saw 1.000 with 17: --max-turns 17 compares them" in said


def test_an_endpoint_that_ignores_the_adapter_and_wavers_is_seen_through(store: Store) -> None:
    """The second time that anybody asks the same, another answer is given: base model and adapter are one, and yet differ once."""
    release = publish(store)
    asked: Counter[str] = Counter()

    def wavers(url: str) -> str:
        asked[url] += 1
        return utterance("('move', 0)") if asked[url] == 2 else stops(url)

    look_at = Models({"": wavers, release: wavers})
    report = look(look_at, store, f"{BASE}:{release}", mazes=1)
    applied = next(check for check in report.checks if check.name == "applied")
    assert (applied.passed, report.passed) == (False, False)
    assert "but on none of them each time: the endpoint wavers" in applied.said


def test_a_canary_may_answer_for_current_and_nobody_else(store: Store) -> None:
    release, other = publish(store), publish(store, b"other", step=40)
    aliases.move(store, "current", release, reason="test", by="t")
    players: dict[str, Player] = {"": stops, release: solves, other: solves}

    def seen() -> verify.Check:
        return look(Models(players, named={"current": other}), store, f"{BASE}:current", mazes=1).checks[3]

    assert seen().passed is False
    aliases.move(store, "canary", other, reason="test", share=0.9, by="t")
    assert (seen().passed, seen().said.split(" got ")[0]) == (None, f"the canary {other}")
    aliases.move(store, "canary", other, reason="test", share=0.0, by="t")
    assert seen().passed is False, "a canary that gets nothing answers nothing"
