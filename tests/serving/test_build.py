"""The front around a FastAPI ingress such as Ray Serve LLM's, without starting Ray."""

from __future__ import annotations

import asyncio
import json
from types import SimpleNamespace
from typing import Any

import pytest

from config.load import load
from k8s import serve_config
from serving import ingress
from serving.routing import RELEASE_HEADER, Alias, Aliases
from tests.serving.asgi import call

pytest.importorskip("starlette", reason="needs ray[serve]")
pytest.importorskip("ray.serve", reason="needs ray[serve]")
# Ray awaits a replica's __del__; nobody does here.
pytestmark = pytest.mark.filterwarnings("ignore:coroutine.*__del__:RuntimeWarning")
RELEASE = "maze-grpo-s20-aaaaaaaa"


def arguments(authentication: str = "none") -> dict[str, Any]:
    env = load("reference")
    (application,) = serve_config.serve_config(env).applications
    front = {**application.args["front"], "application": "tests.serving.fastapi_application:build", "authentication": authentication}
    return {"llm_configs": ["card"], "front": front}


async def replica(application: Any, monkeypatch: pytest.MonkeyPatch) -> Any:
    """What a replica makes of a deployment, after the way that the class takes to it."""
    from ray import cloudpickle

    deployment = application._bound_deployment
    made = cloudpickle.loads(cloudpickle.dumps(deployment.func_or_class))
    instance = made.__new__(made)
    await instance.__init__(**deployment.init_kwargs)
    # FastAPI's view of a class asks Serve which instance it belongs to.
    monkeypatch.setattr("ray.serve.get_replica_context", lambda: SimpleNamespace(servable_object=instance))
    return instance


@pytest.fixture
def current(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ingress.AliasObjects, "__call__", lambda self: Aliases(Alias(RELEASE)))


@pytest.mark.usefixtures("current")
def test_an_alias_is_resolved_before_the_ingress_sees_it(monkeypatch: pytest.MonkeyPatch) -> None:
    async def work() -> None:
        instance = await replica(ingress.build(arguments()), monkeypatch)
        # Ray takes the application, or calls the instance: both ways lead through the front.
        for way in (instance, instance.app):
            answer = await call(way, body={"model": "visgym:current", "messages": []})
            assert answer.status == 200
            assert json.loads(answer.body) == {"got": f"visgym:{RELEASE}", "cards": ["card"]}
            assert answer.headers[RELEASE_HEADER] == RELEASE
            assert (await call(way, "/v1/models", method="GET")).json() == {"data": ["card"]}
        assert instance.app is instance.app
        instance.app.add_exception_handler(KeyError, lambda request, error: None)
        assert instance.app.routes

    asyncio.run(work())


def test_what_the_builder_made_is_kept() -> None:
    from tests.serving import fastapi_application

    args = arguments()
    given = json.dumps(args)
    mine = ingress.build(args)._bound_deployment
    theirs = fastapi_application.build({"llm_configs": ["card"]})._bound_deployment
    assert json.dumps(args) == given
    assert (mine.name, mine.max_ongoing_requests) == (theirs.name, theirs.max_ongoing_requests)
    assert mine.init_kwargs.keys() == theirs.init_kwargs.keys()


def test_keys_that_are_missing_end_the_start(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(ingress.KEYS_VARIABLE, raising=False)

    async def work() -> None:
        instance = await replica(ingress.build(arguments("api-key")), monkeypatch)
        with pytest.raises(RuntimeError, match="holds no API key"):
            instance.app  # noqa: B018
        monkeypatch.setenv(ingress.KEYS_VARIABLE, "a-key")
        instance = await replica(ingress.build(arguments("api-key")), monkeypatch)
        assert (await call(instance, "/v1/models", method="GET")).status == 401
        assert (await call(instance, "/v1/models", method="GET", headers={"authorization": "Bearer a-key"})).status == 200

    asyncio.run(work())
