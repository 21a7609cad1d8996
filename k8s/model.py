"""Chart `model`: a Job that brings the base model to the shared file system before any GPU waits for it. Applied by the launcher."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path

import cdk8s

from config import names
from config.environment import Environment
from k8s import fetch_model, objects, pods
from k8s.objects import Json

CHART = "model"
# Optional Secret of the user's, key `token`: private or gated models need it, this one does not.
TOKEN_SECRET, TOKEN_KEY = "huggingface", "token"
_MOUNT = "/opt/fetch"


def missing(env: Environment) -> str | None:
    """Why this chart is empty, in one sentence, or None if it is not."""
    if not env.training.base_model_repository:
        return "the environment names no repository (training.base_model_repository)"
    if env.network.egress == "closed":
        # The hub is on the internet; what comes in here comes through S3.
        return f"network.egress is closed: put the weights at {env.training.base_model} with a file {fetch_model.MARKER} beside them"
    return None


def chart(app: cdk8s.App, env: Environment) -> cdk8s.Chart:
    """The script and the Job that runs it, in the training namespace; empty where there is nothing to fetch."""
    made = objects.chart(app, CHART)
    if missing(env):
        return made
    script = Path(fetch_model.__file__).read_text()
    labels = objects.labels(env, instance=env.name, component="model")
    namespace = env.ray_cluster.namespace
    spec = _job(env)
    digest = hashlib.sha256((script + json.dumps(spec, sort_keys=True)).encode()).hexdigest()[:10]
    name = f"fetch-model-{digest}"
    spec["template"]["metadata"] = {"labels": labels}
    spec["template"]["spec"]["volumes"].append({"name": "script", "configMap": {"name": name}})
    objects.add(made, "v1", "ConfigMap", name, namespace=namespace, labels=labels, immutable=True, data={"fetch_model.py": script})
    objects.add(made, "batch/v1", "Job", name, namespace=namespace, labels=labels, spec=spec)
    return made


def _job(env: Environment) -> Json:
    training, mount = env.training, env.storage.file_system.mount_path
    group = next((group for group in env.groups("system") if group.count), env.head)
    amounts = {"cpu": "2", "memory": "8Gi"}
    values = {
        "REPOSITORY": training.base_model_repository,
        "REVISION": training.base_model_revision,
        "SUBFOLDER": training.base_model_subfolder,
        "TARGET": training.base_model,
        "HF_HOME": "/tmp/huggingface",  # noqa: S108 - in the pod
    }
    token = {"secretKeyRef": {"name": TOKEN_SECRET, "key": TOKEN_KEY, "optional": True}}
    pod: Json = {
        "restartPolicy": "Never",
        "automountServiceAccountToken": False,
        "serviceAccountName": names.TRAINING_SERVICE_ACCOUNT,
        "nodeSelector": {pods.INSTANCE_GROUP_LABEL: group.name},
        "securityContext": {"runAsNonRoot": True, "runAsUser": pods.RAY_USER, "seccompProfile": {"type": "RuntimeDefault"}},
        "containers": [
            {
                "name": "fetch",
                "image": names.image_uri(env),
                "command": ["python", f"{_MOUNT}/fetch_model.py"],
                "env": [*pods.variables(values), {"name": "HF_TOKEN", "valueFrom": token}],
                "resources": {"requests": amounts, "limits": dict(amounts)},
                "securityContext": pods.container_security(),
                "volumeMounts": [{"name": "shared", "mountPath": mount}, {"name": "script", "mountPath": _MOUNT, "readOnly": True}],
            }
        ],
        "volumes": [{"name": "shared", "persistentVolumeClaim": {"claimName": names.SHARED_CLAIM}}],
    }
    if accepted := pods.tolerations(group):
        pod["tolerations"] = accepted
    return {
        "backoffLimit": 10,
        "activeDeadlineSeconds": 4 * 3600,
        "ttlSecondsAfterFinished": 86400,
        # What trying again does not mend ends at once; a node that went away is no failure of the download.
        "podFailurePolicy": {
            "rules": [
                {"action": "FailJob", "onExitCodes": {"containerName": "fetch", "operator": "In", "values": [fetch_model.NEVER]}},
                {"action": "Ignore", "onPodConditions": [{"type": "DisruptionTarget", "status": "True"}]},
            ]
        },
        "template": {"spec": pod},
    }
