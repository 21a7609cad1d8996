"""An application of the shape that Ray Serve LLM's builder makes: a FastAPI ingress class in front of another deployment."""

from __future__ import annotations

from typing import Any

from fastapi import FastAPI, Request
from ray import serve

app = FastAPI()


class Ingress:
    def __init__(self, llm_deployments: Any, model_cards: Any) -> None:
        self.model_cards = model_cards

    @app.post("/v1/chat/completions")
    async def chat(self, request: Request) -> dict[str, Any]:
        return {"got": (await request.json())["model"], "cards": self.model_cards}

    @app.get("/v1/models")
    async def models(self) -> dict[str, Any]:
        return {"data": self.model_cards}


class Server:
    pass


def build(args: dict[str, Any]) -> Any:
    ingress: Any = serve.deployment(serve.ingress(app)(Ingress), max_ongoing_requests=77)
    return ingress.bind(llm_deployments={"m": serve.deployment(Server).bind()}, model_cards=args["llm_configs"])
