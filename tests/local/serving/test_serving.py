"""A RayService on the local cloud: real Ray Serve, the ingress from the bucket, adapters by the pod's own role with IAM enforced."""

from __future__ import annotations

import concurrent.futures
import json
import os
import shutil
import subprocess
import sys
import tempfile
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from config import ingress, names
from config.load import load
from k8s import serve_config
from local import lifecycle, processes, state
from local.trainer import checkpoint, shared
from local.trainer.policy import Lora, initial_weights
from serving import aliases
from serving.routing import ALIAS_HEADER, RELEASE_HEADER
from serving.store import Store
from tests.local.cloud.conftest import Account, Template, get, group, hyperpod, manifest, ref, resource
from tests.local.kubernetes.conftest import ray_cluster
from tests.local.serving.test_application import adapter
from training.maze import maze
from training.maze_task import message
from training.pictures import png

pytest.importorskip("starlette", reason="needs ray[serve]")
pytestmark = [pytest.mark.cloud, pytest.mark.ray]
# A bound, not a wait: it takes 20 s on two idle cores, and several minutes when ten others want them.
READY_SECONDS = 300.0
OLD, NEW = "maze-grpo-s20-aaaaaaaa", "maze-grpo-s40-bbbbbbbb"
LORA = Lora(8, 8)
ENV = load("local")
BUCKET = names.artifact_bucket(ENV)
KEY = "a-key-of-this-test"
NAMESPACE, SERVICE_ACCOUNT = ENV.serving.namespace, names.SERVING_SERVICE_ACCOUNT


def service() -> Template:
    """The RayService: Serve's configuration as the chart writes it, on small pods."""
    keyed = ENV.model_copy(update={"serving": ENV.serving.model_copy(update={"authentication": "api-key"})})
    spec = ray_cluster(gpus=1)["spec"]
    for part in (spec["headGroupSpec"], *spec["workerGroupSpecs"]):
        pod = part["template"]["spec"]
        pod["serviceAccountName"] = SERVICE_ACCOUNT
        secret = {"name": names.api_keys_secret(ENV), "key": names.API_KEYS_ENTRY}
        pod["containers"][0]["env"] = [{"name": names.API_KEYS_VARIABLE, "valueFrom": {"secretKeyRef": secret}}]
    return {
        "apiVersion": "ray.io/v1", "kind": "RayService", "metadata": {"name": "maze-vlm", "namespace": NAMESPACE},
        "spec": {"serveConfigV2": serve_config.text(serve_config.serve_config(keyed)), "rayClusterConfig": spec},
    }  # fmt: skip


def platform() -> Template:
    """What the Platform stack makes for the endpoint: bucket, role with its two rights, its association, namespace, keys."""
    arn = f"arn:aws:s3:::{BUCKET}"
    rights = [
        {"Effect": "Allow", "Action": "s3:GetObject", "Resource": f"{arn}/{names.ADAPTER_PREFIX}*"},
        {
            "Effect": "Allow",
            "Action": "s3:ListBucket",
            "Resource": arn,
            "Condition": {"StringLike": {"s3:prefix": [f"{names.ADAPTER_PREFIX}*"]}},
        },
    ]
    trust = {
        "Statement": [
            {"Effect": "Allow", "Principal": {"Service": "pods.eks.amazonaws.com"}, "Action": ["sts:AssumeRole", "sts:TagSession"]}
        ]
    }
    policies = [{"PolicyName": "p", "PolicyDocument": {"Version": "2012-10-17", "Statement": rights}}]
    secret = {
        "kind": "Secret",
        "metadata": {"name": names.api_keys_secret(ENV), "namespace": NAMESPACE},
        "stringData": {names.API_KEYS_ENTRY: KEY},
    }
    nodes = hyperpod(group("workers", "ml.g7e.12xlarge", 2))
    nodes["Eks"]["Properties"]["Name"] = names.eks_cluster(ENV)  # the one whose kubeconfig and shared folder have plain names
    return {
        **nodes,
        "Bucket": resource("AWS::S3::Bucket", BucketName=BUCKET),
        "Operator": resource(
            "Custom::AWSCDK-EKS-HelmChart", depends_on=["HyperPod"], ServiceToken="arn:aws:lambda:us-west-2:000000000000:function:none",
            ClusterName=ref("Eks"), Release="kuberay-operator", Chart="kuberay-operator", Version="1.7.1",
            Repository="https://ray-project.github.io/kuberay-helm/", Namespace="kuberay", CreateNamespace="true",
        ),
        "Serving": resource("AWS::IAM::Role", AssumeRolePolicyDocument=trust, Policies=policies),
        "Identity": resource(
            "AWS::EKS::PodIdentityAssociation", ClusterName=ref("Eks"), Namespace=NAMESPACE, ServiceAccount=SERVICE_ACCOUNT,
            RoleArn=get("Serving", "Arn"),
        ),
        "Namespace": manifest(ref("Eks"), {"kind": "Namespace", "metadata": {"name": NAMESPACE}}, depends_on=["Operator"]),
        "Secret": manifest(
            ref("Eks"), secret, {"kind": "ServiceAccount", "metadata": {"name": SERVICE_ACCOUNT, "namespace": NAMESPACE}},
            depends_on=["Namespace"],
        ),
    }  # fmt: skip


def publish(store: Store, name: str, tensors: dict[str, Any]) -> None:
    for file, data in checkpoint.adapter_files(tensors, LORA, base="").items():
        store.put(names.release_key(name, file), data)


@dataclass
class Running:
    url: str
    store: Store
    account: Account

    def ask(self, model: str, *, seed: int = 0, key: str = KEY, **more: Any) -> tuple[int, dict[str, str], Any]:
        """(status, headers, content) of one answer."""
        drawn = maze(seed)
        body = {"model": model, "messages": [message("go", png(drawn.picture(drawn.start)))], "temperature": 0, **more}
        headers = {"content-type": "application/json", "authorization": f"Bearer {key}"}
        request = urllib.request.Request(f"{self.url}/v1/chat/completions", json.dumps(body).encode(), headers)
        try:
            with urllib.request.build_opener(urllib.request.ProxyHandler({})).open(request, timeout=60) as reply:
                return reply.status, {k.lower(): v for k, v in reply.headers.items()}, json.load(reply)
        except urllib.error.HTTPError as error:
            return error.code, {k.lower(): v for k, v in error.headers.items()}, json.load(error)


def until(condition: Callable[[], Any], seconds: float = READY_SECONDS) -> Any:
    limit = time.monotonic() + seconds
    while not (found := condition()):
        assert time.monotonic() < limit, "it did not happen in time"
        time.sleep(0.2)
    return found


def kubectl(*words: str, stdin: str = "") -> Any:
    environment = {**os.environ, **lifecycle.environment()}
    command = [str(Path(sys.executable).with_name("kubectl")), "--namespace", NAMESPACE, *words]
    done = subprocess.run(command, env=environment, input=stdin, capture_output=True, text=True, timeout=60, check=True)
    return json.loads(done.stdout) if "json" in words else done.stdout


@pytest.fixture(scope="module")
def running() -> Iterator[Running]:
    folder = Path(tempfile.mkdtemp(prefix="hr-", dir="/tmp"))  # short: Ray's Unix sockets lie below
    before = {name: os.environ.get(name) for name in (state.FOLDER, "AUTH")}
    os.environ |= {state.FOLDER: str(folder), "AUTH": "true"}  # ministack then evaluates IAM policies
    try:
        account = Account(str(lifecycle.up(node_delay=0.2).endpoint))
        account.deploy("platform", platform())
        store = Store(account.client("s3"), BUCKET)
        weights = initial_weights(np.random.default_rng(0))
        model = folder / "shared" / "models" / "maze-standin"
        shared.write_folder(model, {"model.safetensors": shared.tensors(weights), "config.json": shared.document({})})
        store.put(ingress.key(), ingress.archive())
        for number, name in enumerate((OLD, NEW)):
            publish(store, name, adapter(number, LORA))
            store.put(names.release_key(name, names.RELEASE_RECORD), b"{}")
        aliases.move(store, "current", OLD, reason="first", by="t")
        kubectl("apply", "-f", "-", stdin=json.dumps(service()))
        until(lambda: kubectl("get", "rayservice", "maze-vlm", "-o", "json").get("status", {}).get("serviceStatus") == "Running")
        spec = kubectl("get", "service", names.serve_service(ENV), "-o", "json")["spec"]
        address, port = spec["externalIPs"][0], spec["ports"][0]["port"]
        assert address.startswith("127.")
        yield Running(f"http://{address}:{port}", store, account)
    finally:
        lifecycle.down(purge=True)
        shutil.rmtree(folder, ignore_errors=True)
        for name, value in before.items():
            os.environ.pop(name) if value is None else os.environ.__setitem__(name, value)


def test_base_adapter_and_alias_answer(running: Running) -> None:
    said = {
        model: [running.ask(model, seed=seed) for seed in range(12)]
        for model in (BASE, f"{BASE}:{OLD}", f"{BASE}:current", f"{BASE}:{NEW}")
    }
    assert {status for answers in said.values() for status, _, _ in answers} == {200}
    texts = {model: [content["choices"][0]["message"]["content"] for _, _, content in answers] for model, answers in said.items()}
    assert texts[BASE] != texts[f"{BASE}:{OLD}"] != texts[f"{BASE}:{NEW}"]
    assert texts[f"{BASE}:current"] == texts[f"{BASE}:{OLD}"]
    _, headers, content = said[f"{BASE}:current"][0]
    assert (headers[RELEASE_HEADER], headers[ALIAS_HEADER], content["model"]) == (OLD, "current", f"{BASE}:{OLD}")
    assert RELEASE_HEADER not in said[BASE][0][1]
    assert running.ask(f"{BASE}:missing")[0] == 404
    assert running.ask(f"{BASE}:canary")[0] == 404


BASE = ENV.serving.model_id


def test_a_key_is_asked_for(running: Running) -> None:
    status, _, content = running.ask(BASE, key="another")
    assert (status, content["error"]["code"]) == (401, "invalid_api_key")


def test_the_pods_have_the_serve_role_and_it_reads_releases_only(running: Running) -> None:
    """The credentials that the replica's own SDK finds, asked for what it may and what it may not."""
    others = ["runs/maze-1/run.json", "shared/x", "lora-adapters", "lora-adapterss/x", f"../{names.ADAPTER_PREFIX}x"]
    for key in others:
        running.store.put(key, b"secret")
    replica = next(p.pid for p in processes.marked(state.folder()) if "raylet/raylet" in p.command)
    pairs = (Path(f"/proc/{replica}/environ").read_bytes()).split(b"\0")
    environment = dict(pair.decode().split("=", 1) for pair in pairs if b"=" in pair)
    environment.pop(processes.MARK)
    assert "AWS_ACCESS_KEY_ID" not in environment
    assert "AWS_CONTAINER_AUTHORIZATION_TOKEN" in environment
    code = f"""
import boto3, json
s3, found = boto3.client("s3"), {{}}
def look(name, call, **given):
    try:
        call(Bucket={BUCKET!r}, **given)
        found[name] = 200
    except s3.exceptions.ClientError as error:
        found[name] = error.response["ResponseMetadata"]["HTTPStatusCode"]
look("adapter", s3.get_object, Key={names.release_key(OLD, names.ADAPTER_WEIGHTS)!r})
look("alias", s3.get_object, Key={names.alias_key("current")!r})
look("list", s3.list_objects_v2, Prefix={names.ADAPTER_PREFIX!r})
for key in {others!r}: look(key, s3.get_object, Key=key)
look("list all", s3.list_objects_v2)
look("write", s3.put_object, Key={names.release_key(OLD, "x")!r}, Body=b"")
print(json.dumps(found))
"""
    done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, timeout=60, check=True)
    found = json.loads(done.stdout)
    assert {name: found.pop(name) for name in ("adapter", "alias", "list")} == {"adapter": 200, "alias": 200, "list": 200}
    assert set(found) == {*others, "list all", "write"}
    assert set(found.values()) == {403}, found


def test_a_canary_gets_its_share(running: Running) -> None:
    aliases.move(running.store, "canary", NEW, reason="try", share=0.5, by="t")
    try:
        with concurrent.futures.ThreadPoolExecutor(8) as pool:
            answers = list(pool.map(lambda n: running.ask(f"{BASE}:current", user=f"u{n % 20}"), range(60)))
        by_user: dict[int, set[str]] = {}
        for number, (status, headers, _) in enumerate(answers):
            assert status == 200
            by_user.setdefault(number % 20, set()).add(headers[RELEASE_HEADER])
        assert all(len(releases) == 1 for releases in by_user.values()), "a conversation stays with one release"
        assert {release for releases in by_user.values() for release in releases} == {OLD, NEW}
        assert running.ask(f"{BASE}:canary")[1][RELEASE_HEADER] == NEW
    finally:
        aliases.remove(running.store, "canary", reason="done", by="t")
    assert running.ask(f"{BASE}:canary")[0] == 404


def test_a_rollback_under_load(running: Running) -> None:
    """A hundred requests in flight all the while: none fails, and none that is sent after the rollback is answered by the old release."""
    aliases.move(running.store, "current", NEW, reason="second", by="t")
    assert running.ask(f"{BASE}:current")[1][RELEASE_HEADER] == NEW
    rolled_back, enough = threading.Event(), threading.Event()
    answers: list[tuple[bool, int, str]] = []

    def load_it(number: int) -> None:
        while not enough.is_set():
            after = rolled_back.is_set()  # before it is sent
            status, headers, _ = running.ask(f"{BASE}:current", seed=number % 16)
            answers.append((after, status, headers.get(RELEASE_HEADER, "")))

    with concurrent.futures.ThreadPoolExecutor(100) as pool:
        work = [pool.submit(load_it, number) for number in range(100)]
        until(lambda: len(answers) >= 150, 60)
        assert aliases.rollback(running.store, by="t").release == OLD
        rolled_back.set()
        until(lambda: sum(after for after, _, _ in answers) >= 200, 60)
        enough.set()
        for each in work:
            each.result()
    assert {status for _, status, _ in answers} == {200}
    assert {release for after, _, release in answers if not after} == {NEW, OLD} or {r for a, _, r in answers if not a} == {NEW}
    assert {release for after, _, release in answers if after} == {OLD}


def test_deleting_it_ends_every_process(running: Running) -> None:
    kubectl("delete", "rayservice", "maze-vlm")
    until(lambda: not [p for p in processes.marked(state.folder()) if "raylet" in p.command or "ray::" in p.command], 60)
    assert kubectl("get", "raycluster,service,pods", "-o", "json")["items"] == []
