"""The daemon: `python -m local.serve`. `hyperpod-rl local up` starts it; it ends with SIGTERM, and its children with it."""

from __future__ import annotations

import argparse
import asyncio
import fcntl
import os
import signal
import sys
from functools import partial
from pathlib import Path
from typing import IO, TYPE_CHECKING

from local import processes, state
from local.cloud import ACCOUNT, REGION, SECRET, access, apiserver, ministack
from local.cloud.store import Cloud

if TYPE_CHECKING:
    from local.kubernetes.cluster import Clusters


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m local.serve", description=__doc__)
    parser.add_argument("--ports", type=int, nargs=3, metavar=("CLOUD", "KUBERNETES", "DASHBOARDS"), help="free ones by default")
    parser.add_argument("--node-delay", type=float, default=1.0, help="seconds until HyperPod nodes join")
    given = parser.parse_args()
    ports = state.Ports(*given.ports) if given.ports else state.choose_ports()
    asyncio.run(serve(ports, folder=state.folder(), node_delay=given.node_delay))


async def serve(ports: state.Ports, *, folder: Path, node_delay: float) -> None:
    """Run until SIGTERM or SIGINT."""
    from hypercorn.asyncio import serve as listen
    from hypercorn.config import Config

    lock = _only_one(folder)
    stop = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, stop.set)

    ministack.prepare(port=ports.cloud, state=folder)
    from local.cloud.gateway import gateway

    cloud = Cloud(port=ports.cloud, folder=folder, node_delay=node_delay)
    clusters = cloud.clusters = _clusters(cloud, folder, ports)
    application = gateway(cloud, ministack.application(cloud))

    config = Config()
    config.bind = [f"127.0.0.1:{ports.cloud}"]
    config.keep_alive_timeout = 75
    config.graceful_timeout = 1
    started = state.start_time(os.getpid())
    state.write(state.State(os.getpid(), started or 0, ports))
    tasks: list[asyncio.Task[None]] = [asyncio.create_task(listen(application, config, shutdown_trigger=stop.wait))]  # type: ignore[arg-type]
    tasks.append(asyncio.create_task(_kubernetes(cloud, clusters, folder, ports)))
    waiting = asyncio.create_task(stop.wait())
    try:
        await asyncio.wait([waiting, *tasks], return_when=asyncio.FIRST_COMPLETED)
        for task in tasks:
            if task.done() and not stop.is_set():
                task.result()
    finally:
        stop.set()
        for task in tasks[1:]:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        (folder / "state.json").unlink(missing_ok=True)
        lock.close()


def _only_one(folder: Path) -> IO[str]:
    """Hold the daemon's lock as long as this process lives: two daemons must not share a state folder."""
    folder.mkdir(parents=True, exist_ok=True)
    lock = (folder / "daemon.lock").open("w")
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        sys.exit(f"another daemon runs with the state folder {folder}")
    # Lambda functions and Ray processes are children that must not keep the lock: the file is not inherited.
    return lock


def _clusters(cloud: Cloud, folder: Path, ports: state.Ports) -> Clusters:
    from local.kubernetes.cluster import Clusters
    from local.ray.runtime import Runtime

    # What a pod's SDK finds in its environment; the mark makes Ray's processes known as ours.
    environment = {
        "AWS_ENDPOINT_URL": f"http://127.0.0.1:{ports.cloud}",
        "AWS_ACCESS_KEY_ID": ACCOUNT,
        "AWS_SECRET_ACCESS_KEY": SECRET,
        "AWS_DEFAULT_REGION": REGION,
        "AWS_REGION": REGION,
        processes.MARK: str(folder),
    }
    ray = Runtime(
        folder=state.ray_folder(),
        shared=folder / "shared",
        root=state.ROOT,
        environment=environment,
        identity_of=partial(access.pod_environment, cloud),
    )
    return Clusters(ray=ray)


async def _kubernetes(cloud: Cloud, clusters: Clusters, folder: Path, ports: state.Ports) -> None:
    from local.kubernetes.server import Endpoint
    from local.kubernetes.server import serve as listen

    def ready(endpoint: Endpoint) -> None:
        cloud.kubernetes_endpoint = apiserver.endpoint if apiserver.kubeconfig() else endpoint.of

    await listen(
        clusters,
        state=folder,
        ports=ports,
        ready=ready,
        # The account's own key can be checked; keys of assumed roles are taken as they are.
        secret_of=lambda key: SECRET if key == ACCOUNT else None,
        allowed=partial(access.allowed, cloud),
    )


if __name__ == "__main__":
    main()
