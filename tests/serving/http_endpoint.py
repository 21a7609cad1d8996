"""An ASGI application behind a port of this machine, for as long as a test needs it."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from local.ray.processes import answers, free_port


@contextmanager
def serving(app: Any) -> Iterator[str]:
    """URL of the application."""
    from hypercorn.asyncio import serve
    from hypercorn.config import Config

    port = free_port("127.0.0.1")
    config = Config()
    config.bind = [f"127.0.0.1:{port}"]
    config.graceful_timeout = 0.1
    loop = asyncio.new_event_loop()
    stop = asyncio.Event()
    thread = threading.Thread(target=lambda: loop.run_until_complete(serve(app, config, shutdown_trigger=stop.wait)))  # type: ignore[arg-type]
    thread.start()
    try:
        while not answers("127.0.0.1", port):
            assert thread.is_alive()
        yield f"http://127.0.0.1:{port}"
    finally:
        loop.call_soon_threadsafe(stop.set)
        thread.join(timeout=120)
        loop.close()
