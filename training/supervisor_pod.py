"""The supervisor as a Deployment in the cluster, so that closing the laptop does not end a week of training.

It reaches Ray at the head's service and the shared file system, and nothing else: its service account has no token of the API
server, since how the cluster stands is asked of Ray. The code travels as a ConfigMap, a zip that Python imports from as it is.
"""

from __future__ import annotations

import base64
import hashlib
import json
import shlex
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

from config import gpu_rules, names, series
from config.environment import Environment
from config.load import ROOT

Json = dict[str, Any]
MOUNT: Final = "/opt/hyperpod-rl"
COMPONENT: Final = "app.kubernetes.io/component"
USER: Final = 1000  # `ray` of the training image; the shared file system belongs to it


def name(run_id: str) -> str:
    """Name of a run's Deployment and of what belongs to it."""
    return f"supervise-{run_id}"


def objects(env: Environment, run_id: str, *, words: Sequence[str], environment: str, code: bytes, by: str) -> list[Json]:
    """What is applied, in this order.

    Args:
        words: options of `supervise` beside run, address and metrics.
        environment: text of the environment's file.
        code: the launcher as a zip.
        by: who is named as the submitter of further attempts.
    """
    namespace, own = env.ray_cluster.namespace, name(run_id)
    labels = {
        "app.kubernetes.io/managed-by": names.PREFIX, "app.kubernetes.io/instance": own,
        "app.kubernetes.io/part-of": f"{names.PREFIX}-{env.name}", COMPONENT: "supervisor",
    }  # fmt: skip

    def made(api: str, kind: str, title: str, **body: Any) -> Json:
        return {"apiVersion": api, "kind": kind, "metadata": {"name": title, "namespace": namespace, "labels": labels}, **body}

    chosen = {"app.kubernetes.io/instance": own}
    head = {"ray.io/cluster": env.ray_cluster.name, "ray.io/node-type": "head"}
    digest = hashlib.sha256(code + environment.encode() + json.dumps(list(words)).encode()).hexdigest()[:16]
    return [
        made("v1", "ServiceAccount", names.SUPERVISOR_SERVICE_ACCOUNT, automountServiceAccountToken=False),
        made("v1", "ConfigMap", own, binaryData={"code.zip": base64.b64encode(code).decode()}, data={"environment.yaml": environment}),
        # Policies add up: this opens the head's dashboard to the supervisor and to nobody else.
        made("networking.k8s.io/v1", "NetworkPolicy", own, spec={
            "podSelector": {"matchLabels": head}, "policyTypes": ["Ingress"],
            "ingress": [{"from": [{"podSelector": {"matchLabels": chosen}}],
                         "ports": [{"port": names.DASHBOARD_PORT, "protocol": "TCP"}]}],
        }),
        made("apps/v1", "Deployment", own, spec={
            "replicas": 1, "strategy": {"type": "Recreate"}, "selector": {"matchLabels": chosen},
            "template": {
                "metadata": {"labels": labels, "annotations": {
                    "hyperpod-rl/code": digest, "prometheus.io/scrape": "true", "prometheus.io/port": str(series.METRICS_PORT),
                    "prometheus.io/path": series.METRICS_PATH,
                }},
                "spec": _pod(env, run_id, words=words, by=by),
            },
        }),
    ]  # fmt: skip


def _pod(env: Environment, run_id: str, *, words: Sequence[str], by: str) -> Json:
    group = next((group for group in env.groups("system") if group.count), env.head)
    address = f"http://{env.ray_cluster.name}-head-svc.{env.ray_cluster.namespace}.svc:{names.DASHBOARD_PORT}"
    command = [
        "python", "-m", "cli.main", "--env", f"{MOUNT}/environment.yaml", "supervise", run_id, "--address", address,
        "--metrics-port", str(series.METRICS_PORT), "--metrics-address", "0.0.0.0", *words,  # noqa: S104 - inside the pod's network
    ]  # fmt: skip
    # A verdict is no reason to be started again; a cluster that did not come back in time is.
    script = f"{shlex.join(command)}; code=$?; case $code in 0|1|2) exec sleep infinity;; *) exit $code;; esac"
    variables = {"HOME": "/tmp", "HYPERPOD_RL_SUBMITTER": by, "PYTHONPATH": f"{MOUNT}/code.zip", "AWS_REGION": env.region}  # noqa: S108
    amounts = {"cpu": "500m", "memory": "2Gi"}
    tolerations = [
        {"key": taint.key, "operator": "Equal" if taint.value else "Exists", "effect": taint.effect}
        | ({"value": taint.value} if taint.value else {})
        for taint in group.taints
    ]
    return {
        "serviceAccountName": names.SUPERVISOR_SERVICE_ACCOUNT,
        "automountServiceAccountToken": False,
        "nodeSelector": {gpu_rules.INSTANCE_GROUP: group.name},
        "tolerations": tolerations,
        "securityContext": {"runAsNonRoot": True, "runAsUser": USER, "seccompProfile": {"type": "RuntimeDefault"}},
        "containers": [
            {
                "name": "supervisor",
                "image": names.image_uri(env),
                "command": ["sh", "-c", script],
                "workingDir": "/tmp",  # noqa: S108
                "env": [{"name": key, "value": value} for key, value in sorted(variables.items())],
                "ports": [{"name": "metrics", "containerPort": series.METRICS_PORT, "protocol": "TCP"}],
                "resources": {"requests": amounts, "limits": dict(amounts)},
                "securityContext": {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}},
                "volumeMounts": [
                    {"name": "shared", "mountPath": env.storage.file_system.mount_path},
                    {"name": "code", "mountPath": MOUNT, "readOnly": True},
                ],
            }
        ],
        "volumes": [
            {"name": "shared", "persistentVolumeClaim": {"claimName": names.SHARED_CLAIM}},
            {"name": "code", "configMap": {"name": name(run_id)}},
        ],
    }


def write(env: Environment, run_id: str, found: Sequence[Json], *, root: Path = ROOT) -> Path:
    """Put the manifests into dist/<environment>/supervise-<run-id>/, one object a file, and return the folder."""
    import yaml

    folder = root / "dist" / env.name / name(run_id)
    folder.mkdir(parents=True, exist_ok=True)
    for index, each in enumerate(found):
        text = yaml.safe_dump(each, sort_keys=False, width=10_000)
        (folder / f"{index:02d}-{each['kind'].lower()}.yaml").write_text(text, encoding="utf-8")
    return folder
