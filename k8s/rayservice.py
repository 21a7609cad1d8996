"""Chart `rayservice`: the OpenAI-compatible endpoint, base model from the shared file system and adapters from S3."""

from __future__ import annotations

import cdk8s

from config import capacity, images, names
from config.environment import Environment
from k8s import objects, pods, serve_config
from k8s.objects import Json
from k8s.raycluster import queue_label, remote_endpoint

CHART = "rayservice"
GROUP = "replicas"
# Pulling a 20 GB image and reading 17 GB of weights from FSx takes minutes; after this KubeRay gives the GPUs back
# (annotation `ray.io/initializing-timeout`; `serviceUnhealthySecondThreshold` is no longer read, KubeRay issue 1685).
INITIALIZING_TIMEOUT = "60m"


def chart(app: cdk8s.App, env: Environment) -> cdk8s.Chart:
    """One RayService in the serving namespace."""
    made = objects.chart(app, CHART)
    serving = env.serving
    objects.add(
        made,
        "ray.io/v1",
        "RayService",
        serving.name,
        namespace=serving.namespace,
        labels=objects.labels(env, instance=serving.name, component="serving") | queue_label(env, serving.namespace),
        annotations=remote_endpoint(env) | {"ray.io/initializing-timeout": INITIALIZING_TIMEOUT},
        spec={
            "serveConfigV2": serve_config.text(serve_config.serve_config(env)),
            "upgradeStrategy": {"type": capacity.serving_upgrade(env).strategy},
            # The head holds no replica: traffic through it would only take a second hop, and make it part of every request.
            "excludeHeadPodFromServeSvc": True,
            "rayClusterConfig": cluster_spec(env),
        },
    )
    if serving.authentication == "internal-load-balancer":
        _load_balancer(made, env)
    return made


def _load_balancer(made: cdk8s.Chart, env: Environment) -> None:
    """A network load balancer inside the VPC, for callers outside the cluster: who reaches the VPC may ask, nobody else.

    Annotations of the AWS Load Balancer Controller, which the cluster must have:
    https://kubernetes-sigs.github.io/aws-load-balancer-controller/latest/guide/service/annotations/
    """
    serving = env.serving
    prefix = "service.beta.kubernetes.io/aws-load-balancer"
    objects.add(
        made,
        "v1",
        "Service",
        names.load_balancer_service(env),
        namespace=serving.namespace,
        labels=objects.labels(env, instance=serving.name, component="serving"),
        annotations={
            f"{prefix}-type": "external",
            f"{prefix}-scheme": "internal",
            # HyperPod's nodes are no EC2 instances of this account, so pods are targets by their addresses.
            f"{prefix}-nlb-target-type": "ip",
            f"{prefix}-healthcheck-path": "/-/healthz",
            f"{prefix}-healthcheck-protocol": "http",
        },
        spec={
            "type": "LoadBalancer",
            "loadBalancerSourceRanges": list(env.network.cidrs),
            # KubeRay gives this label to the pods whose proxy answers.
            "selector": {"ray.io/serve": "true", "app.kubernetes.io/instance": serving.name},
            "ports": [{"name": "serve", "port": names.SERVE_PORT, "targetPort": names.SERVE_PORT, "protocol": "TCP"}],
        },
    )


def cluster_spec(env: Environment) -> Json:
    """The Ray cluster beneath the endpoint: its Ray is the serving image's, not the training image's."""
    count = capacity.serving_pods(env)
    return {
        "rayVersion": env.version_set.serving.ray,
        "enableInTreeAutoscaling": False,
        "headGroupSpec": {
            "rayStartParams": {"dashboard-host": "0.0.0.0", "num-cpus": "0"} | _object_store(capacity.serving_head()),  # noqa: S104
            "template": pods.template(env, head_pod(env)),
        },
        "workerGroupSpecs": [
            {
                "groupName": GROUP,
                "replicas": count,
                "minReplicas": count,
                "maxReplicas": count,
                "rayStartParams": _object_store(capacity.serving_worker(env)),
                "template": pods.template(env, worker_pod(env)),
            }
        ],
    }


def head_pod(env: Environment) -> pods.RayPod:
    """The head: controller and dashboard, no GPU. The user is the image's own: AWS does not document which, and baseline allows it."""
    ports = {
        "gcs-server": names.GCS_PORT,
        "dashboard": names.DASHBOARD_PORT,
        "client": names.CLIENT_PORT,
        "serve": names.SERVE_PORT,
        "metrics": pods.METRICS_PORT,
    }
    return pods.RayPod(
        image=images.serving(env),
        size=capacity.serving_head(),
        group=capacity.serving_head_group(env),
        service_account=names.SERVING_SERVICE_ACCOUNT,
        labels=_labels(env, "head"),
        environment=_environment(env),
        ports=ports,
        user=None,
        reads_only=True,
    )


def worker_pod(env: Environment) -> pods.RayPod:
    """One pod for the replicas of a node."""
    return pods.RayPod(
        image=images.serving(env),
        size=capacity.serving_worker(env),
        group=capacity.serving_group(env),
        service_account=names.SERVING_SERVICE_ACCOUNT,
        labels=_labels(env, "worker"),
        environment=_environment(env),
        ports={"serve": names.SERVE_PORT, "metrics": pods.METRICS_PORT},
        user=None,
        reads_only=True,
        termination_grace_seconds=180,  # Serve drains requests for up to 120 s
        # KubeRay's own probe for these pods calls wget, which an image on Amazon Linux need not have; this asks the same of Serve's proxy.
        readiness={
            "httpGet": {"path": "/-/healthz", "port": names.SERVE_PORT},
            "initialDelaySeconds": 10,
            "periodSeconds": 5,
            "timeoutSeconds": 5,
            "failureThreshold": 2,
        },
    )


def _labels(env: Environment, component: str) -> dict[str, str]:
    serving = env.serving
    return objects.labels(env, instance=serving.name, component=f"serving-{component}") | queue_label(env, serving.namespace)


def _object_store(size: capacity.PodSize) -> dict[str, str]:
    return {"object-store-memory": str(size.object_store_bytes)}


def _environment(env: Environment) -> list[Json]:
    # The region for boto3, on the ingress and the replicas: both read adapters from S3. Credentials come from Pod Identity.
    values = {"AWS_REGION": env.region, "AWS_DEFAULT_REGION": env.region, "HF_HUB_OFFLINE": "1"}
    keys = []
    if env.serving.authentication == "api-key":
        # Read when a pod starts: a key that was added or withdrawn counts from the next start of the pods.
        secret = {"name": names.api_keys_secret(env), "key": names.API_KEYS_ENTRY}
        keys = [{"name": names.API_KEYS_VARIABLE, "valueFrom": {"secretKeyRef": secret}}]
    return [*pods.variables(values), *keys]
