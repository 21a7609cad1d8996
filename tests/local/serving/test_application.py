"""The stand-in's chat API: model ids, pictures, adapters, and what it refuses. No Ray: one ASGI application."""

from __future__ import annotations

import asyncio
import base64
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from botocore.exceptions import ClientError

from local.serving.application import Api
from local.serving.policy import Adapters, base_weights
from local.trainer import checkpoint, shared
from local.trainer.policy import MATRICES, Lora, forward, initial_adapter, initial_weights, merged, pool
from local.trainer.rollout import utterance
from tests.serving.asgi import Answer, call
from tests.serving.bucket import MemoryS3
from training.maze import maze
from training.maze_task import message
from training.pictures import png

LORA = Lora(4, 8)
ENGINE = {"max_lora_rank": 8, "limit_mm_per_prompt": {"image": 3}}


def adapter(seed: int, lora: Lora = LORA, *, zero: bool = False) -> dict[str, Any]:
    """A random adapter that changes what the policy says; a zero one changes nothing."""
    made = initial_adapter(lora, np.random.default_rng(seed))
    if not zero:
        rng = np.random.default_rng(seed + 1000)
        made |= {f"{name}.lora_B": rng.standard_normal(made[f"{name}.lora_B"].shape).astype(np.float32) for name in MATRICES}
    return made


class Role(MemoryS3):
    """S3 as a role sees it that may list below its prefix only: a missing key is a 403."""

    def _existing(self, operation: str, key: str, code: str = "") -> Any:
        try:
            return super()._existing(operation, key, code)
        except ClientError:
            raise ClientError({"Error": {"Code": "AccessDenied"}, "ResponseMetadata": {"HTTPStatusCode": 403}}, operation) from None  # type: ignore[typeddict-item]


@pytest.fixture
def s3() -> MemoryS3:
    return Role()


@pytest.fixture
def base() -> dict[str, Any]:
    return initial_weights(np.random.default_rng(0))


@pytest.fixture
def api(s3: MemoryS3, base: dict[str, Any]) -> Api:
    return Api("visgym", Adapters("s3://bucket/lora-adapters/", base, 8, client=s3), ENGINE)


def publish(s3: MemoryS3, name: str, tensors: dict[str, Any], lora: Lora = LORA) -> None:
    for file, data in checkpoint.adapter_files(tensors, lora, base="").items():
        s3.put_object(Bucket="bucket", Key=f"lora-adapters/{name}/{file}", Body=data)


def ask(api: Api, model: str, *, seed: int = 0, **more: Any) -> Answer:
    drawn = maze(seed)
    body = {"model": model, "messages": [message("go", png(drawn.picture(drawn.start)))], "temperature": 0, **more}
    return asyncio.run(call(api, body=body))


def said(answer: Answer) -> str:
    assert answer.status == 200, answer.body
    return str(answer.json()["choices"][0]["message"]["content"])


def test_answers_are_the_policys_own(api: Api, s3: MemoryS3, base: dict[str, Any]) -> None:
    tensors = adapter(3)
    publish(s3, "a", tensors)
    for seed in range(8):
        drawn = maze(seed)
        inputs = pool(drawn.picture(drawn.start))[None]
        assert said(ask(api, "visgym", seed=seed)) == utterance(int(forward(base, inputs).logits[0].argmax()))
        expected = int(forward(merged(base, tensors, LORA), inputs).logits[0].argmax())
        assert said(ask(api, "visgym:a", seed=seed)) == utterance(expected)


def test_a_zero_adapter_is_the_base_model(api: Api, s3: MemoryS3) -> None:
    publish(s3, "zero", adapter(3, zero=True))
    publish(s3, "other", adapter(4))
    mazes = range(20)
    base = [said(ask(api, "visgym", seed=seed)) for seed in mazes]
    assert [said(ask(api, "visgym:zero", seed=seed)) for seed in mazes] == base
    assert [said(ask(api, "visgym:other", seed=seed)) for seed in mazes] != base


def test_an_adapter_is_held_for_the_replicas_life(api: Api, s3: MemoryS3) -> None:
    publish(s3, "a", adapter(3))
    before = [said(ask(api, "visgym:a", seed=seed)) for seed in range(8)]
    publish(s3, "a", adapter(4))
    assert [said(ask(api, "visgym:a", seed=seed)) for seed in range(8)] == before, "overwriting in place has no effect"


def test_models(api: Api, s3: MemoryS3) -> None:
    publish(s3, "b", adapter(1))
    publish(s3, "a", adapter(2))
    s3.put_object(Bucket="bucket", Key="lora-adapters/aliases/current.json", Body=b"{}")
    s3.put_object(Bucket="bucket", Key="lora-adapters/half/adapter_model.safetensors", Body=b"")
    s3.put_object(Bucket="bucket", Key="lora-adapters/a/deeper/adapter_config.json", Body=b"")
    listed = asyncio.run(call(api, "/v1/models", method="GET")).json()
    assert [card["id"] for card in listed["data"]] == ["visgym", "visgym:a", "visgym:b"]
    assert asyncio.run(call(api, "/v1/models/visgym:a", method="GET")).json()["id"] == "visgym:a"
    for unknown in ("/v1/models/visgym:half", "/v1/models/other", "/v1/audio/speech"):
        assert asyncio.run(call(api, unknown, method="GET")).status == 404


def test_a_stream_ends_with_done(api: Api) -> None:
    answer = ask(api, "visgym", stream=True)
    assert answer.headers["content-type"] == "text/event-stream"
    events = answer.body.decode().split("\n\n")
    assert events[-1] == ""
    assert events[-2] == "data: [DONE]"
    pieces = [json.loads(event.removeprefix("data: ")) for event in events[:-2]]
    assert "".join(piece["choices"][0]["delta"].get("content", "") for piece in pieces) == said(ask(api, "visgym"))
    assert pieces[-1]["choices"][0]["finish_reason"] == "stop"


def test_temperature_draws_and_a_seed_repeats(api: Api) -> None:
    assert said(ask_seeded(api, 7)) == said(ask_seeded(api, 7))
    assert len({said(ask_seeded(api, number)) for number in range(30)}) > 1


def ask_seeded(api: Api, number: int) -> Answer:
    drawn = maze(0)
    body = {"model": "visgym", "messages": [message("go", png(drawn.picture(drawn.start)))], "temperature": 5.0, "seed": number}
    return asyncio.run(call(api, body=body))


PICTURE = base64.b64encode(png(np.zeros((225, 225, 3), np.uint8))).decode()


def image(url: str) -> list[dict[str, Any]]:
    return [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": url}}]}]


@pytest.mark.parametrize(
    ("change", "status", "text"),
    [
        ({"model": "other"}, 404, "Could not find base model"),
        ({"model": "visgym:missing"}, 404, "there is no adapter missing"),
        ({"model": "visgym:deep"}, 400, "rank 16, above max_lora_rank 8"),
        ({"model": "visgym:torn"}, 400, "cannot be read"),
        ({"model": "visgym:half"}, 404, "has no weights"),
        ({"model": "visgym:misfit"}, 400, "does not fit the base model"),
        ({"messages": []}, 400, "a list of messages is needed"),
        ({"messages": [{"role": "user", "content": "no picture"}]}, 400, "sees pictures only"),
        ({"messages": image("https://example.com/maze.png")}, 400, "data URLs in base64 only"),
        ({"messages": image("data:image/png;base64,???")}, 400, "this is not base64"),
        ({"messages": image("data:image/png;base64,AAAA")}, 400, "cannot be read"),
        ({"messages": image(f"data:image/png;base64,{base64.b64encode(png(np.zeros((9, 9, 3), np.uint8))).decode()}")}, 400, "9"),
        ({"messages": image(f"data:image/png;base64,{PICTURE}") * 4}, 400, "At most 3 image(s)"),
        ({"n": 2}, 400, "several choices"),
        ({"temperature": "warm"}, 400, "'warm' is no number of at least 0"),
        ({"temperature": -1}, 400, "no number of at least 0"),
        ({"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": "x"}]}]}, 400, "data URLs in base64 only"),
        ({"messages": [{"role": "user", "content": [{"type": "image_url"}]}, 7]}, 400, "data URLs in base64 only"),
        ({"model": None}, 404, "Could not find base model"),
        ({"model": ["visgym"]}, 404, "Could not find base model"),
        ({"tools": [{}]}, 400, "does not serve tools"),
    ],
)
def test_what_is_refused(api: Api, s3: MemoryS3, change: dict[str, Any], status: int, text: str) -> None:
    publish(s3, "deep", adapter(1, Lora(16, 16)), Lora(16, 16))
    publish(s3, "misfit", {**adapter(1), "encoder.lora_A": np.zeros((4, 4), np.float32)})
    for name, weights in (("torn", b"\x10\0\0\0"), ("half", None)):
        s3.put_object(Bucket="bucket", Key=f"lora-adapters/{name}/adapter_config.json", Body=b'{"r": 4, "lora_alpha": 4}')
        if weights is not None:
            s3.put_object(Bucket="bucket", Key=f"lora-adapters/{name}/adapter_model.safetensors", Body=weights)
    body = {"model": "visgym", "messages": image(f"data:image/png;base64,{PICTURE}"), **change}
    answer = asyncio.run(call(api, body=body))
    assert answer.status == status
    assert text in answer.json()["error"]["message"]


@pytest.mark.parametrize("body", [b"", b"[]", b"{"])
def test_a_body_that_is_none(api: Api, body: bytes) -> None:
    assert asyncio.run(call(api, body=body)).status == 400


def test_the_base_model_is_read_from_shared(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, base: dict[str, Any]) -> None:
    monkeypatch.setenv(shared.SHARED_VARIABLE, str(tmp_path))
    with pytest.raises(ValueError, match="there is no base model at /shared/models/maze-standin"):
        base_weights("/shared/models/maze-standin")
    shared.write_folder(
        tmp_path / "models" / "maze-standin", {"model.safetensors": shared.tensors(base), "config.json": shared.document({})}
    )
    assert set(base_weights("/shared/models/maze-standin")) == set(base)
