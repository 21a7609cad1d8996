"""How the launcher reaches Ray's Jobs API: through the HyperPod Ray endpoint where the environment has one, else by port-forward.

A connection gives a fresh client whenever asked: the endpoint's token lives 15 minutes and its cookie 6 hours
(https://docs.aws.amazon.com/sagemaker/latest/dg/sagemaker-hyperpod-ray-endpoint-operator.html), so a long `follow` needs several.
"""

from __future__ import annotations

import contextlib
import logging
import os
import re
import subprocess
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any, TypeVar

from config import names
from config.environment import Environment
from config.problems import Problem, Refused, Unreachable, without_password
from training import deployed, kubeconfig
from training.kubernetes import kubectl

CALL_TIMEOUT_SECONDS = 60.0
FORWARD_TIMEOUT_SECONDS = 30.0
T = TypeVar("T")


class Lost(Unreachable):
    """A call that did not come back, or came back from something that is not Ray: worth another try with a new client."""


class Missing(Unreachable):
    """There is no such RayCluster: another try would find none either."""


class Answered(Exception):
    """Ray's Jobs API answered with an error of its own (its text is the message)."""


def endpoint_address(env: Environment) -> str | None:
    """`sagemaker_ray://<RayCluster>/<namespace>` if the environment has the Ray endpoint operator, else None."""
    remote = env.remote_access
    if remote.endpoint_operator or remote.domain is not None:
        return f"sagemaker_ray://{env.ray_cluster.name}/{env.ray_cluster.namespace}"
    return None


@dataclass
class Connection:
    """One way to the Jobs API. `factory` builds a client for an address; tests give their own."""

    environment: Environment
    address: str
    factory: Callable[[str], Any]
    reopen: Callable[[], str] | None = None
    note: Callable[[str], None] = lambda _: None
    _client: Any = field(default=None, repr=False)

    def client(self) -> Any:
        """The present client, made when needed. Raises Lost."""
        # No lock: a factory that hangs is abandoned with its thread, and two clients at once do no harm.
        client = self._client
        if client is None:
            client = self._client = self.factory(self.address)
        return client

    def renew(self) -> None:
        """Forget the client, and the port-forward if that is the way: the next call makes both anew."""
        self._client = None
        if self.reopen is not None:
            self.address = self.reopen()

    def call(self, function: Callable[[Any], T]) -> T:
        """Call the Jobs API, once more with a new client if the first call was lost: only for calls that may be repeated.

        Raises Answered for what Ray itself says, Lost otherwise.
        """
        try:
            return _within(CALL_TIMEOUT_SECONDS, lambda: function(self.client()), f"Ray at {self.address}")
        except Lost:
            self.renew()
            return _within(CALL_TIMEOUT_SECONDS, lambda: function(self.client()), f"Ray at {self.address}")


@contextlib.contextmanager
def connect(env: Environment, *, address: str | None = None, note: Callable[[str], None] = lambda _: None) -> Iterator[Connection]:
    """Open the way to the environment's Ray cluster; nothing is reached before the first call.

    `address` overrides the choice: `http://…` or `sagemaker_ray://…`. Raises Refused for an address that the environment forbids.
    """
    chosen = address or endpoint_address(env)
    if address is not None:
        _check_address(env, address)
    if chosen is not None and not chosen.startswith("sagemaker_ray://"):
        yield Connection(env, chosen, factory=_ray_client, note=note)
        return
    config = str(kubeconfig.ensure(env))
    if chosen is not None:
        yield Connection(env, chosen, factory=lambda a: _endpoint_client(env, a, config), note=note)
        return
    forward = _Forward(env, config)
    try:
        yield Connection(env, forward.open(), factory=_ray_client, reopen=forward.open, note=note)
    finally:
        forward.close()


def _check_address(env: Environment, address: str) -> None:
    # An address may carry `user:password@`, also one that is not well formed.
    shown = re.sub(r"^(\w+://)?.*@", r"\1***@", address, flags=re.DOTALL)
    if not re.match(r"^(https?|sagemaker_ray)://\S+$", address):
        raise Refused(
            Problem("--address", shown, "it must begin with http://, https:// or sagemaker_ray://", "for example http://127.0.0.1:8265")
        )
    if env.local and not address.startswith("sagemaker_ray://") and not deployed.is_loopback(address):
        raise Refused(Problem("--address", shown, f"environment {env.name} speaks to this machine only", "use a loopback address"))


def _endpoint_client(env: Environment, address: str, config: str) -> Any:
    """A client through the unmodified toolkit, which reads $KUBECONFIG; renewed once if the cluster has moved."""
    before = os.environ.get("KUBECONFIG")
    os.environ["KUBECONFIG"] = config
    try:
        try:
            return _ray_client(address)
        except Exception as error:
            old = kubeconfig.path(env).read_bytes()
            # A cluster made anew has another address; the toolkit says the same for that as for any other failure.
            if not isinstance(translated(error, address), Lost) or kubeconfig.refresh(env).read_bytes() == old:
                raise
            return _ray_client(address)
    finally:
        if before is None:
            del os.environ["KUBECONFIG"]
        else:
            os.environ["KUBECONFIG"] = before


def _ray_client(address: str) -> Any:
    # Ray would follow these instead of the address that it is given (ray/dashboard/utils.py, get_address_for_submission_client).
    for variable in ("RAY_ADDRESS", "RAY_API_SERVER_ADDRESS"):
        os.environ.pop(variable, None)
    logging.getLogger("ray").setLevel(logging.ERROR)
    logging.getLogger("toolkit_for_ray_on_sagemaker_ai").setLevel(logging.ERROR)
    from ray.job_submission import JobSubmissionClient

    logging.getLogger("ray.dashboard.modules.job.sdk").setLevel(logging.ERROR)
    return JobSubmissionClient(address)


def _within(seconds: float, function: Callable[[], T], what: str) -> T:
    """Run a call that has no time limit of its own (Ray's client has none) and give up on it after `seconds`."""
    outcome: list[T] = []
    failure: list[BaseException] = []

    def work() -> None:
        try:
            outcome.append(function())
        except BaseException as error:  # noqa: BLE001 - carried to the caller's thread
            failure.append(error)

    thread = threading.Thread(target=work, daemon=True)
    thread.start()
    thread.join(seconds)
    if outcome:
        return outcome[0]
    if not failure:
        raise Lost(f"{without_password(what)} did not answer within {seconds:.0f} s")
    raise translated(failure[0], what) from None


def translated(error: BaseException, what: str) -> BaseException:
    """What Ray's client and the toolkit raise, as ours: Answered, Lost, or unchanged if it is ours already."""
    if isinstance(error, (Unreachable, Refused, Answered, KeyboardInterrupt, SystemExit)):
        return error
    said, what = without_password(" ".join(str(error).split())), without_password(what)
    if said.startswith("Resource not found for cluster"):
        return Missing(f"there is no RayCluster behind {what.removeprefix('Ray at ')}; make it first: `hyperpod-rl cluster up`")
    if "Failed to get head node agent" in said:  # a 500 of ray/dashboard/modules/job/job_head.py, 10 s after the call
        return Lost(f"{what} answers, but its job agent is not up (yet): try again, and see dashboard_agent.log on the head if it stays so")
    answered = re.search(r"Request failed with status code (\d+): (.*)", said)
    # 401/403 is an expired session, 502-504 a proxy before a dashboard that restarts.
    if answered and answered[1] not in ("401", "403", "502", "503", "504"):
        return Answered(answered[2])
    return Lost(f"{what} cannot be reached: {said[:500].rstrip('.') or type(error).__name__}")


class _Forward:
    """`kubectl port-forward` to the head's dashboard on a free port of this machine."""

    def __init__(self, env: Environment, config: str) -> None:
        self.env, self.config = env, config
        self.process: subprocess.Popen[str] | None = None

    def open(self) -> str:
        """Start it (again) and return the address. Raises Lost."""
        self.close()
        service = f"svc/{self.env.ray_cluster.name}-head-svc"
        where = ("--kubeconfig", self.config, "--namespace", self.env.ray_cluster.namespace)
        self.process = subprocess.Popen(
            (kubectl(), *where, "port-forward", "--address", "127.0.0.1", service, f":{names.DASHBOARD_PORT}"),
            stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
        )  # fmt: skip
        lines: list[str] = []
        found = threading.Event()

        def read(process: subprocess.Popen[str]) -> None:
            for line in process.stdout or ():
                if len(lines) < 20:
                    lines.append(line.strip())
                if "Forwarding from 127.0.0.1:" in line:
                    found.set()
            found.set()

        threading.Thread(target=read, args=(self.process,), daemon=True).start()
        found.wait(FORWARD_TIMEOUT_SECONDS)
        for line in lines:
            if match := re.search(r"Forwarding from 127\.0\.0\.1:(\d+)", line):
                return f"http://127.0.0.1:{match[1]}"
        self.close()
        said = "; ".join(line.rstrip(".") for line in lines if line) or "kubectl said nothing"
        raise Lost(
            f"no port-forward to {service} in {self.env.ray_cluster.namespace}: {said}; is the cluster up (`hyperpod-rl cluster up`)?"
        )

    def close(self) -> None:
        """End it."""
        if self.process is not None:
            self.process.terminate()
            try:
                self.process.wait(5)
            except subprocess.TimeoutExpired:
                self.process.kill()
                self.process.wait()
            if self.process.stdout is not None:
                self.process.stdout.close()
            self.process = None
