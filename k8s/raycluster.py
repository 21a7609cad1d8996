"""Chart `raycluster`: the Ray cluster that training runs on. Applied by the launcher, with the user's own identity."""

from __future__ import annotations

import cdk8s

from config import capacity, names
from config.environment import Environment
from config.pod_rules import is_efa_variable
from k8s import objects, pods
from k8s.objects import Json

CHART = "raycluster"
GROUP = "workers"
HEAD_PORTS = {"gcs-server": names.GCS_PORT, "dashboard": names.DASHBOARD_PORT, "client": names.CLIENT_PORT, "metrics": pods.METRICS_PORT}
WORKER_PORTS = {"metrics": pods.METRICS_PORT}


def chart(app: cdk8s.App, env: Environment) -> cdk8s.Chart:
    """One RayCluster in the training namespace."""
    made = objects.chart(app, CHART)
    name = env.ray_cluster.name
    objects.add(
        made,
        "ray.io/v1",
        "RayCluster",
        name,
        namespace=env.ray_cluster.namespace,
        labels=objects.labels(env, instance=name, component="training") | queue_label(env, env.ray_cluster.namespace),
        annotations=remote_endpoint(env),
        # Recreate: with the default, None, KubeRay takes a changed image or pod size and does nothing with it. Recreate ends the pods and
        # with them a running job, which its next attempt continues from the last checkpoint; the launcher asks first.
        spec={"upgradeStrategy": {"type": "Recreate"}} | cluster_spec(env),
    )
    return made


def cluster_spec(env: Environment) -> Json:
    """The RayClusterSpec; a RayJob takes the same one, for which KubeRay forbids `upgradeStrategy`."""
    count = env.workers.count
    scales = env.ray_cluster.autoscaling
    restart = "Never" if scales else "Always"  # KubeRay's rule for autoscaler v2
    spec: Json = {
        "rayVersion": env.version_set.training.ray,
        # A gang of fixed size: SkyRL takes all GPUs in one placement group, so a scaler has nothing to decide but to end idle pods.
        "enableInTreeAutoscaling": scales,
        "headGroupSpec": {
            # 0 CPUs: no task or actor lands on the head, so none can take its memory (a head out of memory ends the run).
            "rayStartParams": {"dashboard-host": "0.0.0.0", "num-cpus": "0"} | _object_store(capacity.head(env)),  # noqa: S104
            "template": pods.template(env, head_pod(env, restart_policy=restart)),
        },
        "workerGroupSpecs": [
            {
                "groupName": GROUP,
                "replicas": count,
                "minReplicas": 0 if scales else count,
                "maxReplicas": count,
                "rayStartParams": _object_store(capacity.worker(env)),
                "template": pods.template(env, worker_pod(env, restart_policy=restart)),
            }
        ],
    }
    if scales:
        spec["autoscalerOptions"] = {"version": "v2", "idleTimeoutSeconds": 600}
    if env.ray_cluster.gcs_fault_tolerance:
        spec["gcsFaultToleranceOptions"] = _fault_tolerance(env)
    return spec


def head_pod(env: Environment, *, restart_policy: str = "Always") -> pods.RayPod:
    """The head. KubeRay adds its HTTP probes (Ray >= 2.53): liveness gives a busy head ten minutes."""
    return pods.RayPod(
        image=names.image_uri(env),
        size=capacity.head(env),
        group=env.head,
        service_account=names.TRAINING_SERVICE_ACCOUNT,
        labels=_labels(env, "head"),
        environment=_environment(env, efa=0),
        ports=HEAD_PORTS,
        restart_policy=restart_policy,
        unhealthy_nodes=env.ray_cluster.tolerate_unhealthy_nodes,
        api_token=env.ray_cluster.autoscaling,  # the autoscaler edits its own RayCluster; nothing else here speaks to the API server
    )


def worker_pod(env: Environment, *, restart_policy: str = "Always") -> pods.RayPod:
    """One worker a node. Nothing is saved on SIGTERM (SkyRL has no handler), so the grace is for logs only."""
    size = capacity.worker(env)
    return pods.RayPod(
        image=names.image_uri(env),
        size=size,
        group=env.workers,
        service_account=names.TRAINING_SERVICE_ACCOUNT,
        labels=_labels(env, "worker"),
        environment=_environment(env, efa=size.efa_interfaces),
        ports=WORKER_PORTS,
        restart_policy=restart_policy,
        unhealthy_nodes=env.ray_cluster.tolerate_unhealthy_nodes,
    )


def remote_endpoint(env: Environment) -> dict[str, str]:
    """Switch of HyperPod's Ray Endpoint Operator: whose identity applies the object is its owner under `private`.

    https://docs.aws.amazon.com/sagemaker/latest/dg/sagemaker-hyperpod-ray-endpoint-operator.html
    """
    if env.remote_access.domain is None and not env.remote_access.endpoint_operator:
        return {}
    return {
        "access.sagemaker.amazonaws.com/enabled": "true",
        "access.sagemaker.amazonaws.com/access-strategy": f"ray-access-strategy-{env.remote_access.strategy}",
    }


def queue_label(env: Environment, namespace: str) -> dict[str, str]:
    """With task governance a workload waits in its team's queue; Kueue wants the label on the object and on both pod templates."""
    return {"kueue.x-k8s.io/queue-name": f"{namespace}-localqueue"} if env.hyperpod.task_governance else {}


def _labels(env: Environment, component: str) -> dict[str, str]:
    namespace = env.ray_cluster.namespace
    return objects.labels(env, instance=env.ray_cluster.name, component=f"training-{component}") | queue_label(env, namespace)


def _object_store(size: capacity.PodSize) -> dict[str, str]:
    # Said, not left to Ray: Ray would take its share of the pod's memory even where /dev/shm is smaller, and then spill to files in /tmp.
    return {"object-store-memory": str(size.object_store_bytes)}


def _environment(env: Environment, *, efa: int) -> list[Json]:
    values = {
        # Starting hundreds of workers from a cold image takes longer than Ray's 60 s (https://github.com/NovaSky-AI/SkyRL/issues/224).
        "RAY_worker_register_timeout_seconds": "600",
        "AWS_REGION": env.region,
        "AWS_DEFAULT_REGION": env.region,
    }
    if efa:
        # Without the resource these would make NCCL fail or fall back to TCP in silence, so they go with it.
        # Huge pages off: a fork (a data loader) fails with "cannot allocate memory" once EFA has taken them
        # (https://github.com/aws-samples/awsome-distributed-training, efa-cheatsheet).
        values |= {"FI_PROVIDER": "efa", "FI_EFA_USE_HUGE_PAGE": "0"}
    # HyperPod's hung-job agent listens on the node (toolkit-for-ray-on-sagemaker-ai 1.0.4, SageMakerLogMonitoring).
    wanted = {name: value for name, value in env.ray_cluster.environment.items() if efa or not is_efa_variable(name, value)}
    return [pods.host_ip("HYPERPOD_JMA_HOST"), *pods.variables(values | wanted)]


def _fault_tolerance(env: Environment) -> Json:
    # It keeps the cluster's actors and placement groups over a head's death. It does not save a training: the driver runs on
    # the head and dies with it. What brings a run back is the next attempt and its checkpoint.
    options: Json = {"redisAddress": env.ray_cluster.redis_address or ""}  # Redis is the backend unless another is named
    if env.ray_cluster.redis_password_secret:
        options["redisPassword"] = {"valueFrom": {"secretKeyRef": {"name": env.ray_cluster.redis_password_secret, "key": "password"}}}
    return options
