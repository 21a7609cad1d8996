"""Chart `supervisor`: who watches over one run from inside the cluster. Applied by the launcher, `hyperpod-rl supervise RUN --deploy`.

What belongs to a run (its id, the options, the code) are placeholders, which `config.placeholders.fill` fills there. Its identity and
the network's rules are the same for every run and lie in the platform chart, so that whoever trains need not be able to hand out rights.
"""

from __future__ import annotations

import cdk8s

from config import names, series
from config.environment import Environment
from config.placeholders import placeholder
from k8s import objects, pods
from k8s.objects import Json

CHART = "supervisor"
COMPONENT = "supervisor"
MOUNT = "/opt/hyperpod-rl"
# A verdict is no reason to be started again; a cluster that did not come back in time is.
_SCRIPT = '"$@"; code=$?; case $code in 0|1|2) exec sleep infinity;; *) exit $code;; esac'


def chart(app: cdk8s.App, env: Environment) -> cdk8s.Chart:
    """The ConfigMap with the launcher's code, and the Deployment, in the training namespace."""
    made = objects.chart(app, CHART)
    name, namespace = names.supervisor(placeholder("RUN_ID")), env.ray_cluster.namespace
    labels = objects.labels(env, instance=name, component=COMPONENT)
    objects.add(
        made, "v1", "ConfigMap", name, namespace=namespace, labels=labels,
        binaryData={"code.zip": placeholder("CODE_ZIP")}, data={"environment.yaml": placeholder("ENVIRONMENT_FILE")},
    )  # fmt: skip
    annotations = {
        "hyperpod-rl/code": placeholder("CODE_DIGEST"),
        "prometheus.io/scrape": "true",
        "prometheus.io/port": str(series.METRICS_PORT),
        "prometheus.io/path": series.METRICS_PATH,
    }
    objects.add(
        made, "apps/v1", "Deployment", name, namespace=namespace, labels=labels,
        spec={
            "replicas": 1,
            "strategy": {"type": "Recreate"},  # never two at once
            "revisionHistoryLimit": 1,
            "selector": {"matchLabels": {"app.kubernetes.io/instance": name}},
            "template": {"metadata": {"labels": labels, "annotations": annotations}, "spec": _pod(env, name)},
        },
    )  # fmt: skip
    return made


def pod_labels(env: Environment) -> dict[str, str]:
    """Labels by which the network's rules know the supervisors of an environment, whatever their run."""
    return {"app.kubernetes.io/component": COMPONENT, "app.kubernetes.io/part-of": f"{names.PREFIX}-{env.name}"}


def command(env: Environment) -> list[str]:
    """What runs in the pod: no shell reads any of these words."""
    address = f"http://{env.ray_cluster.name}-head-svc.{env.ray_cluster.namespace}.svc:{names.DASHBOARD_PORT}"
    options = {
        "address": address, "metrics-port": str(series.METRICS_PORT), "metrics-address": "0.0.0.0",  # noqa: S104 - the pod's network
        "attempts": placeholder("ATTEMPTS"), "hang-factor": placeholder("HANG_FACTOR"), "hang-minimum": placeholder("HANG_MINIMUM"),
        "first-step": placeholder("FIRST_STEP"), "ready": placeholder("READY"),
    }  # fmt: skip
    return [
        "python", "-m", "cli.main", "--env", f"{MOUNT}/environment.yaml", "supervise", placeholder("RUN_ID"),
        *(f"--{name}={value}" for name, value in options.items()),
    ]  # fmt: skip


def _pod(env: Environment, name: str) -> Json:
    group = next((group for group in env.groups("system") if group.count), env.head)
    amounts = {"cpu": "500m", "memory": "2Gi"}
    values = {
        "AWS_REGION": env.region,
        "HOME": "/tmp",  # noqa: S108 - in the pod
        "HYPERPOD_RL_SUBMITTER": placeholder("SUBMITTER"),
        "PYTHONPATH": f"{MOUNT}/code.zip",
        names.CODE_VARIABLE: placeholder("CODE_COMMIT"),
        names.IN_CLUSTER_VARIABLE: names.eks_cluster(env),
        names.HANG_LOG_GROUP_VARIABLE: placeholder("HANG_LOG_GROUP"),
    }
    pod: Json = {
        "serviceAccountName": names.SUPERVISOR_SERVICE_ACCOUNT,
        "automountServiceAccountToken": True,  # its Role reads how the RayCluster stands
        "nodeSelector": {pods.INSTANCE_GROUP_LABEL: group.name},
        "terminationGracePeriodSeconds": 5,  # it may be ended at any moment: what it needs to know is in Ray and in the record
        "securityContext": {"runAsNonRoot": True, "runAsUser": pods.RAY_USER, "seccompProfile": {"type": "RuntimeDefault"}},
        "containers": [
            {
                "name": "supervisor",
                "image": names.image_uri(env),
                "command": ["sh", "-c", _SCRIPT, "supervisor", *command(env)],
                "workingDir": "/tmp",  # noqa: S108
                "env": pods.variables(values),
                "ports": [{"name": "metrics", "containerPort": series.METRICS_PORT, "protocol": "TCP"}],
                "resources": {"requests": amounts, "limits": dict(amounts)},
                "securityContext": pods.container_security(),
                "volumeMounts": [
                    {"name": "shared", "mountPath": env.storage.file_system.mount_path},
                    {"name": "code", "mountPath": MOUNT, "readOnly": True},
                ],
            }
        ],
        "volumes": [
            {"name": "shared", "persistentVolumeClaim": {"claimName": names.SHARED_CLAIM}},
            {"name": "code", "configMap": {"name": name}},
        ],
    }
    if accepted := pods.tolerations(group):
        pod["tolerations"] = accepted
    return pod


def rights(into: cdk8s.Chart, env: Environment) -> None:
    """For the platform chart: the service account, its Role (read, nothing else), and who may ask it for its series."""
    namespace, account = env.ray_cluster.namespace, names.SUPERVISOR_SERVICE_ACCOUNT
    labels = objects.labels(env, instance=env.name, component=COMPONENT)
    api, group = "rbac.authorization.k8s.io/v1", "rbac.authorization.k8s.io"
    # Only the pod that is told to mounts its token; credentials of AWS come from Pod Identity.
    objects.add(into, "v1", "ServiceAccount", account, namespace=namespace, labels=labels, automountServiceAccountToken=False)
    objects.add(
        into, api, "Role", account, namespace=namespace, labels=labels,
        rules=[
            {"apiGroups": ["ray.io"], "resources": ["rayclusters"], "resourceNames": [env.ray_cluster.name], "verbs": ["get"]},
            # Why the RayCluster is not ready: what its pods wait for, and what the events say.
            {"apiGroups": [""], "resources": ["pods", "events"], "verbs": ["list"]},
        ],
    )  # fmt: skip
    objects.add(
        into, api, "RoleBinding", account, namespace=namespace, labels=labels,
        roleRef={"apiGroup": group, "kind": "Role", "name": account},
        subjects=[{"kind": "ServiceAccount", "name": account, "namespace": namespace}],
    )  # fmt: skip
    collector = {"namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": names.OBSERVABILITY_NAMESPACE}}}
    objects.add(
        into, "networking.k8s.io/v1", "NetworkPolicy", account, namespace=namespace, labels=labels,
        spec={
            "podSelector": {"matchLabels": pod_labels(env)},
            "policyTypes": ["Ingress"],
            "ingress": [{"from": [collector], "ports": [{"port": series.METRICS_PORT, "protocol": "TCP"}]}],
        },
    )  # fmt: skip
