"""`python -m local.serving.candidate`: what `vllm serve --lora-modules` is to a GPU: an export that is not released yet, as a model.

The base model is called `base`, each `--adapter NAME=FOLDER` by its name. Ends with SIGTERM.
"""

from __future__ import annotations

import argparse
import asyncio
import signal
from pathlib import Path

from local.serving.application import Api
from local.serving.policy import Adapters, Rejected
from local.trainer.pretrain import base_model
from serving.ingress import Receive, Scope, Send

BASE = "base"


class Folders(Adapters):
    """Adapters from folders of this machine instead of S3."""

    folders: dict[str, Path]

    def names(self) -> list[str]:
        """All of them."""
        return sorted(self.folders)

    def _object(self, name: str) -> bytes | None:
        adapter, _, file = name.partition("/")
        try:
            return (self.folders[adapter] / file).read_bytes()
        except (KeyError, FileNotFoundError):
            return None


class Candidates(Api):
    """The chat API with plain model names, as vLLM gives them to its LoRA modules."""

    def _adapter(self, model: object) -> str:
        name = str(model)
        if name != BASE and name not in self.adapters.names():
            raise Rejected(404, f"The model `{name}` does not exist.")
        return "" if name == BASE else name

    def _card(self, adapter: str) -> dict[str, object]:
        return {**super()._card(""), "id": adapter or BASE}


def main() -> None:
    """Serve until SIGTERM."""
    parser = argparse.ArgumentParser(prog="python -m local.serving.candidate", description=__doc__)
    parser.add_argument("--base", type=Path, required=True, metavar="FOLDER")
    parser.add_argument("--adapter", action="append", default=[], metavar="NAME=FOLDER")
    parser.add_argument("--max-rank", type=int, default=8)
    parser.add_argument("--images", type=int, default=16)
    parser.add_argument("--port", type=int, required=True)
    given = parser.parse_args()
    if not given.base.is_dir():
        parser.error(f"there is no base model at {given.base}")
    adapters = Folders("", base_model(given.base)[0], given.max_rank)
    adapters.folders = {name: Path(folder) for name, _, folder in (each.partition("=") for each in given.adapter)}
    asyncio.run(_serve(Candidates(BASE, adapters, {"limit_mm_per_prompt": {"image": given.images}}), given.port))


async def _serve(api: Candidates, port: int) -> None:
    from hypercorn.asyncio import serve
    from hypercorn.config import Config

    stop, config = asyncio.Event(), Config()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, stop.set)
    config.bind, config.graceful_timeout, config.keep_alive_timeout = [f"127.0.0.1:{port}"], 1, 75

    async def application(scope: Scope, receive: Receive, send: Send) -> None:
        await api(scope, receive, send)

    await serve(application, config, shutdown_trigger=stop.wait)  # type: ignore[arg-type]


if __name__ == "__main__":
    main()
