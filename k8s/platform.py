"""Chart `platform`: what the workloads stand on. Applied by CDK, so it changes with a deploy and goes with a destroy."""

from __future__ import annotations

import hashlib
import json

import cdk8s
import cdk8s_plus_27 as kplus

from config import capacity, images, names
from config.environment import Environment
from config.placeholders import placeholder
from k8s import objects, pods, supervisor
from k8s.objects import Json

CHART = "platform"
# One nominal size for ever: the API server forbids to change a claim's volume, and FSx does not look at it
# (a file system of 1200 GiB that grows to 2400 GiB leaves both objects as they are).
NOMINAL_SIZE = "1200Gi"
RAY_PODS = {"ray.io/is-ray-node": "yes"}
# Ray's own metrics, the autoscaler's and the dashboard's (KubeRay's default ports).
METRICS_PORTS = (pods.METRICS_PORT, 44217, 44227)
# API group -> kinds that a reader of a namespace sees.
READABLE = {
    "": ("pods", "pods/log", "events", "services", "persistentvolumeclaims"),
    "ray.io": ("rayclusters", "rayservices", "rayjobs"),
    "batch": ("jobs",),
}
FOLDERS = ("models", "datasets", "runs", "cache")


def chart(app: cdk8s.App, env: Environment) -> cdk8s.Chart:
    """Namespaces, identities, storage, network policies, quotas, the disruption budget, and the Job that prepares /shared."""
    made = objects.chart(app, CHART)
    for namespace in env.namespaces:
        _namespace(made, env, namespace)
    for namespace in env.namespaces:
        _identities(made, env, namespace)
        _storage(made, env, namespace)
        _network(made, env, namespace)
        _quota(made, env, namespace)
    supervisor.rights(made, env)
    _disruption_budget(made, env)
    _prepare_job(made, env)
    return made


def _labels(env: Environment, component: str) -> dict[str, str]:
    return objects.labels(env, instance=env.name, component=component)


def _namespace(made: cdk8s.Chart, env: Environment, name: str) -> None:
    version = f"v{env.version_set.platform.kubernetes}"
    security = {f"pod-security.kubernetes.io/{mode}": level for mode, level in (("enforce", "baseline"), ("warn", "baseline"))}
    pinned = {f"pod-security.kubernetes.io/{mode}-version": version for mode in ("enforce", "warn")}
    kplus.Namespace(made, f"Namespace-{name}", metadata=objects.metadata(name, labels=_labels(env, "namespace") | security | pinned))


def _identities(made: cdk8s.Chart, env: Environment, namespace: str) -> None:
    accounts = []
    if namespace == env.ray_cluster.namespace:
        accounts += [(names.TRAINING_SERVICE_ACCOUNT, "training"), (names.RELEASE_SERVICE_ACCOUNT, "releases")]
    if namespace == env.serving.namespace:
        accounts.append((names.SERVING_SERVICE_ACCOUNT, "serving"))
    for account, component in accounts:
        # No token of the API server: Ray needs none, and Pod Identity mounts its own.
        kplus.ServiceAccount(
            made,
            f"ServiceAccount-{namespace}-{account}",
            metadata=objects.metadata(account, namespace=namespace, labels=_labels(env, component)),
            automount_token=False,
        )
    # For people who look and do not touch; who they are is an access entry's Kubernetes group.
    role = kplus.Role(
        made, f"Role-{namespace}-ray-reader", metadata=objects.metadata("ray-reader", namespace=namespace, labels=_labels(env, "access"))
    )
    for group, kinds in READABLE.items():
        # jsii declares the class and its interface apart, so a type checker sees no relation between them.
        role.allow_read(*(kplus.ApiResource.custom(api_group=group, resource_type=kind) for kind in kinds))  # type: ignore[arg-type]
    binding = kplus.RoleBinding(
        made,
        f"RoleBinding-{namespace}-ray-reader",
        metadata=objects.metadata("ray-reader", namespace=namespace, labels=_labels(env, "access")),
        role=role,
    )
    binding.add_subjects(kplus.Group.from_name(made, f"Group-{namespace}-readers", f"{names.PREFIX}:readers"))


def volume(env: Environment, namespace: str) -> str:
    """Name of the PersistentVolume behind one namespace's claim: a volume binds to one claim only."""
    return f"{names.PREFIX}-{env.name}-{namespace}"


def _storage(made: cdk8s.Chart, env: Environment, namespace: str) -> None:
    objects.add(
        made,
        "v1",
        "PersistentVolume",
        volume(env, namespace),
        labels=_labels(env, "storage"),
        spec={
            "capacity": {"storage": NOMINAL_SIZE},
            "accessModes": ["ReadWriteMany"],
            "persistentVolumeReclaimPolicy": "Retain",
            "storageClassName": "",
            "volumeMode": "Filesystem",
            # Hugging Face and uv lock files; Lustre takes locks over nodes only with this.
            "mountOptions": ["flock"],
            "claimRef": {"apiVersion": "v1", "kind": "PersistentVolumeClaim", "namespace": namespace, "name": names.SHARED_CLAIM},
            "csi": {
                "driver": "fsx.csi.aws.com",
                "volumeHandle": placeholder("FILE_SYSTEM_ID"),
                "volumeAttributes": {"dnsname": placeholder("FILE_SYSTEM_DNS_NAME"), "mountname": placeholder("FILE_SYSTEM_MOUNT_NAME")},
            },
        },
    )
    objects.add(
        made,
        "v1",
        "PersistentVolumeClaim",
        names.SHARED_CLAIM,
        namespace=namespace,
        labels=_labels(env, "storage"),
        spec={
            "accessModes": ["ReadWriteMany"],
            "storageClassName": "",
            "volumeName": volume(env, namespace),
            "resources": {"requests": {"storage": NOMINAL_SIZE}},
        },
    )


def _network(made: cdk8s.Chart, env: Environment, namespace: str) -> None:
    """Ray's ports have no authentication: a job is code that runs. Who may reach 8265 is said here.

    `kubectl port-forward` and the kubelet's probes come from the node itself, which a network policy does not hold back.
    """
    ingress = [
        {"from": [{"podSelector": {"matchLabels": RAY_PODS}}]},
        {"from": [_namespaced(names.ENDPOINT_OPERATOR_NAMESPACE)], "ports": [_port(names.DASHBOARD_PORT)]},
        # KubeRay submits a RayJob's job, deploys Serve's configuration and reads the state of both through the dashboard.
        {"from": [_namespaced(names.KUBERAY_NAMESPACE)], "ports": [_port(names.DASHBOARD_PORT)]},
        {"from": [_namespaced(names.OBSERVABILITY_NAMESPACE)], "ports": [_port(port) for port in METRICS_PORTS]},
        *_control_plane(env),
    ]
    if namespace == env.ray_cluster.namespace:
        ingress.append({"from": [{"podSelector": {"matchLabels": supervisor.pod_labels(env)}}], "ports": [_port(names.DASHBOARD_PORT)]})
    if namespace == env.serving.namespace:
        # The endpoint's callers: pods of this namespace, evaluation jobs of the training namespace, and KubeRay, which asks for its health.
        callers = [{"podSelector": {}}, *([_namespaced(env.ray_cluster.namespace)] if env.ray_cluster.namespace != namespace else [])]
        if env.serving.authentication == "internal-load-balancer":
            # The load balancer speaks to pods from its own addresses in the VPC.
            callers += [{"ipBlock": {"cidr": cidr}} for cidr in env.network.cidrs]
        ingress.append({"from": [*callers, _namespaced(names.KUBERAY_NAMESPACE)], "ports": [_port(names.SERVE_PORT)]})
    objects.add(
        made,
        "networking.k8s.io/v1",
        "NetworkPolicy",
        "ray",
        namespace=namespace,
        labels=_labels(env, "network"),
        spec={"podSelector": {"matchLabels": RAY_PODS}, "policyTypes": ["Ingress"], "ingress": ingress},
    )


def _control_plane(env: Environment) -> list[Json]:
    """The API server's way to a dashboard, by which the drain asks whether a job runs before it deletes anything.

    Its interfaces lie in `network.cidr`, where no pod does. A VPC of the user's own may hold other pods in that range, so it has no such
    rule: the drain cannot ask there, and goes on.
    """
    if env.network.existing is not None:
        return []
    return [{"from": [{"ipBlock": {"cidr": env.network.cidr}}], "ports": [_port(names.DASHBOARD_PORT)]}]


def _namespaced(name: str) -> Json:
    return {"namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": name}}}


def _port(number: int) -> Json:
    return {"port": number, "protocol": "TCP"}


def _quota(made: cdk8s.Chart, env: Environment, namespace: str) -> None:
    """GPUs of a namespace: a second RayCluster is refused at once instead of waiting for GPUs that never come.

    GPUs only: a quota on CPU or memory would make every pod without requests fail, the operator's and the debugger's too.
    """
    training = env.training_gpus if namespace == env.ray_cluster.namespace else 0
    endpoints = 2 if capacity.serving_upgrade(env).strategy == "NewCluster" else 1
    serving = endpoints * capacity.serving_gpus(env) if namespace == env.serving.namespace else 0
    # GPUs that are shared belong to one of the two at a time.
    gpus = max(training, serving) if env.serving.share_workers else training + serving
    objects.add(
        made,
        "v1",
        "ResourceQuota",
        "gpus",
        namespace=namespace,
        labels=_labels(env, "quota"),
        spec={"hard": {"requests.nvidia.com/gpu": str(gpus)}},
    )


def _disruption_budget(made: cdk8s.Chart, env: Environment) -> None:
    # minAvailable as a number, since these pods have no controller with a scale (https://github.com/ray-project/kuberay/issues/2662). With
    # one pod it keeps a drain from ending the endpoint: take it down with `serve down` first. A pod that does not answer anyway holds
    # no drain up: by default it would, for ever (https://kubernetes.io/docs/tasks/run-application/configure-pdb/#unhealthy-pod-eviction-policy).
    objects.add(
        made,
        "policy/v1",
        "PodDisruptionBudget",
        env.serving.name,
        namespace=env.serving.namespace,
        labels=_labels(env, "serving"),
        spec={
            "minAvailable": max(1, capacity.serving_pods(env) - 1),
            "unhealthyPodEvictionPolicy": "AlwaysAllow",
            "selector": {"matchLabels": {"app.kubernetes.io/instance": env.serving.name, "app.kubernetes.io/component": "serving-worker"}},
        },
    )


def prepare_script(mount: str) -> str:
    """Shell that gives /shared to the training user: safe to run again, done only when the marker is there."""
    folders = " ".join(f"{mount}/{folder}" for folder in FOLDERS)
    return (
        "set -eu\n"
        f"mkdir -p {folders}\n"
        f"chown {pods.RAY_USER}:{pods.RAY_USER} {mount} {folders}\n"
        f"chmod 0775 {mount} {folders}\n"
        f"printf 'owner={pods.RAY_USER}\\n' > {mount}/.prepared.new\n"
        f"chown {pods.RAY_USER}:{pods.RAY_USER} {mount}/.prepared.new\n"
        f"mv {mount}/.prepared.new {mount}/.prepared\n"
    )


def _prepare_job(made: cdk8s.Chart, env: Environment) -> None:
    namespace, mount = env.ray_cluster.namespace, env.storage.file_system.mount_path
    system = env.groups("system")
    group = next((group for group in system if group.count), env.head)
    amounts = {"cpu": "100m", "memory": "128Mi"}
    pod: Json = {
        "restartPolicy": "OnFailure",
        "automountServiceAccountToken": False,
        "nodeSelector": {pods.INSTANCE_GROUP_LABEL: group.name},
        "securityContext": {"seccompProfile": {"type": "RuntimeDefault"}},
        "containers": [
            {
                "name": "prepare",
                "image": images.shell(env),
                "command": ["/bin/sh", "-c", prepare_script(mount)],
                "resources": {"requests": amounts, "limits": dict(amounts)},
                # Root, for a new file system belongs to root; of root's powers only those that change owners.
                "securityContext": {
                    "runAsUser": 0,
                    "allowPrivilegeEscalation": False,
                    "readOnlyRootFilesystem": True,
                    "capabilities": {"drop": ["ALL"], "add": ["CHOWN", "DAC_OVERRIDE", "FOWNER"]},
                },
                "volumeMounts": [{"name": "shared", "mountPath": mount}],
            }
        ],
        "volumes": [{"name": "shared", "persistentVolumeClaim": {"claimName": names.SHARED_CLAIM}}],
    }
    if accepted := pods.tolerations(group):
        pod["tolerations"] = accepted
    spec: Json = {
        "backoffLimit": 6,
        "activeDeadlineSeconds": 1800,
        "ttlSecondsAfterFinished": 86400,
        "template": {"metadata": {"labels": _labels(env, "prepare")}, "spec": pod},
    }
    # A Job's template cannot be changed: another content is another Job.
    digest = hashlib.sha256(json.dumps(spec, sort_keys=True).encode()).hexdigest()[:10]
    objects.add(made, "batch/v1", "Job", f"prepare-shared-{digest}", namespace=namespace, labels=_labels(env, "prepare"), spec=spec)
