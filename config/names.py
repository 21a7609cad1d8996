"""Names of deployed things: physical names that must not change, SSM parameters, namespaces, service accounts, paths.

What must not be replaced (HyperPod, EKS, FSx) has an explicit physical name, so that AWS itself refuses a silent replacement.
"""

from __future__ import annotations

import re
from enum import StrEnum

from config.environment import Environment
from config.problems import Problem, Refused

PREFIX = "hyperpod-rl"
# The operator and its users agree on these: https://docs.aws.amazon.com/sagemaker/latest/dg/sagemaker-hyperpod-ray-endpoint-operator.html
ENDPOINT_OPERATOR_NAMESPACE = "hyperpod-ray"
KUBERAY_NAMESPACE = "kuberay"
DEPENDENCY_CHART_NAMESPACE = "kube-system"
DEPENDENCY_CHART_RELEASE = "hyperpod-dependencies"
OBSERVABILITY_NAMESPACE = "hyperpod-observability"
OBSERVABILITY_SERVICE_ACCOUNT = "hyperpod-observability-operator-otel-collector"
OBSERVABILITY_ADDON = "amazon-sagemaker-hyperpod-observability"
TRAINING_SERVICE_ACCOUNT = "ray-training"
SERVING_SERVICE_ACCOUNT = "ray-serving"
# Of the Jobs that judge exports and publish releases where the shared file system is mounted: alone in writing adapters.
RELEASE_SERVICE_ACCOUNT = "releases"
# Of the pods that watch over a run: reads the RayCluster, its pods and events, and puts the run's record into the bucket.
SUPERVISOR_SERVICE_ACCOUNT = "supervisor"
# The supervisor knows by the first that it is a pod of the environment's own cluster, by the second where HyperPod tells of hangs, and
# by the third from which commit its code was taken.
IN_CLUSTER_VARIABLE, HANG_LOG_GROUP_VARIABLE = "HYPERPOD_RL_IN_CLUSTER", "HYPERPOD_RL_HANG_LOG_GROUP"
CODE_VARIABLE, DIRTY_SUFFIX = "HYPERPOD_RL_CODE", "-dirty"
LOAD_BALANCER_SERVICE_ACCOUNT = "aws-load-balancer-controller"
SHARED_CLAIM = "shared"
DASHBOARD_PORT, CLIENT_PORT, GCS_PORT, SERVE_PORT = 8265, 10001, 6379, 8000
LUSTRE_PORTS = (988, 988), (1018, 1023)
ADAPTER_PREFIX = "lora-adapters/"
RUNS_PREFIX = "runs/"
EXPORT_PREFIX = "shared/"
# One release is one folder below ADAPTER_PREFIX, all that the endpoint's role may read. Ray Serve takes a folder for an adapter as
# soon as its configuration is there, so that file is the last one written and the first one removed.
ALIAS_PREFIX = f"{ADAPTER_PREFIX}aliases/"
# The endpoint's own code (config.ingress), there for the same reason.
CODE_PREFIX = f"{ADAPTER_PREFIX}code/"
# The endpoint's pods get its API keys from this entry of a Secret, as this variable (`serving.ingress` reads it).
API_KEYS_ENTRY, API_KEYS_VARIABLE = "keys", "HYPERPOD_RL_API_KEYS"
ADAPTER_WEIGHTS, ADAPTER_CONFIG, RELEASE_RECORD = "adapter_model.safetensors", "adapter_config.json", "release.json"


class Stack(StrEnum):
    """Stacks, one life span each, in the order of their creation."""

    NETWORK = "Network"
    DATA = "Data"
    TELEMETRY = "Telemetry"
    CLUSTER = "Cluster"
    HYPERPOD = "HyperPod"
    NODES_READY = "NodesReady"
    PLATFORM = "Platform"
    OBSERVABILITY = "Observability"
    STUDIO = "Studio"


class Parameter(StrEnum):
    """SSM parameters below `/hyperpod-rl/<environment>/`: what a deployed environment is called."""

    EKS_CLUSTER = "eks-cluster-name"
    HYPERPOD_CLUSTER = "hyperpod-cluster-name"
    HYPERPOD_ARN = "hyperpod-cluster-arn"
    FILE_SYSTEM_ID = "file-system-id"
    FILE_SYSTEM_DNS = "file-system-dns-name"
    FILE_SYSTEM_MOUNT = "file-system-mount-name"
    ARTIFACT_BUCKET = "artifact-bucket"
    IMAGE_REPOSITORY = "image-repository-uri"
    IMAGE_PROJECT = "image-build-project"
    PROMETHEUS_ENDPOINT = "prometheus-endpoint"
    PROMETHEUS_ARN = "prometheus-arn"
    GRAFANA_ID = "grafana-workspace-id"
    GRAFANA_ENDPOINT = "grafana-endpoint"
    NODES_READY = "nodes-ready"


def stack(env: Environment, which: Stack) -> str:
    """CloudFormation stack name."""
    return f"{PREFIX}-{env.name}-{which.value}"


def parameter_path(env: Environment) -> str:
    """Path of all SSM parameters of an environment."""
    return f"/{PREFIX}/{env.name}/"


def parameter(env: Environment, which: Parameter) -> str:
    """Full name of one SSM parameter."""
    return parameter_path(env) + which.value


def eks_cluster(env: Environment) -> str:
    """Physical name of the EKS cluster."""
    return f"{PREFIX}-{env.name}"


def hyperpod_cluster(env: Environment) -> str:
    """Physical name of the HyperPod cluster (at most 63 characters)."""
    return f"{PREFIX}-{env.name}"


def file_system(env: Environment) -> str:
    """Name tag of the FSx file system (FSx has no physical name of the user's choosing)."""
    return f"{PREFIX}-{env.name}"


def artifact_bucket(env: Environment) -> str:
    """S3 bucket for adapters, releases and run records: at most 63 characters, so the environment's name has at most 24."""
    return f"{PREFIX}-{env.name}-{env.account}-{env.region}"


def short_region(region: str) -> str:
    """A region as its AZ ids begin: us-west-2 -> usw2, ap-northeast-1 -> apne1, us-gov-west-1 -> usgw1."""
    first, *middle, number = region.split("-")
    short = {"northeast": "ne", "northwest": "nw", "southeast": "se", "southwest": "sw"}
    return first + "".join(short.get(part, part[:1]) for part in middle) + number


def lifecycle_bucket(env: Environment) -> str:
    """S3 bucket for lifecycle scripts; the managed node policy covers names that begin with `sagemaker-` only.

    Bucket names are one space for all regions, and with a region in full the longest would pass S3's 63 characters.
    """
    return f"sagemaker-{PREFIX}-{env.name}-{env.account}-{short_region(env.region)}"


def delivery_role(env: Environment, kind: str) -> str:
    """IAM role of GitHub's workflows, `plan` or `deploy`: with the region, since IAM has none."""
    return f"{PREFIX}-{env.name}-{env.region}-{kind}"


def budget(env: Environment) -> str:
    """Name of the month's budget: with the region, since AWS Budgets has none."""
    return f"{PREFIX}-{env.name}-{env.region}"


def image_uri(env: Environment) -> str:
    """URI of the training image in the environment's own ECR: by digest where it is pinned, else by tag."""
    suffix = "amazonaws.com.cn" if env.region.startswith("cn-") else "amazonaws.com"
    repository = f"{env.account}.dkr.ecr.{env.region}.{suffix}/{image_repository(env)}"
    return f"{repository}@{env.image.digest}" if env.image.digest else f"{repository}:{env.image.tag}"


def image_repository(env: Environment) -> str:
    """ECR repository name; the reference environment carries the article's name, others have their own beside it."""
    return env.image.repository if env.name == "reference" else f"{env.image.repository}-{env.name}"


RUN_ID = re.compile(r"^[a-z0-9]([a-z0-9-]{0,46}[a-z0-9])?$")


def check_run_id(run_id: str) -> str:
    """A run id is a file name, a Kubernetes name part and a Ray submission id at once. Raises Refused."""
    if not RUN_ID.fullmatch(run_id):
        raise Refused(
            Problem(
                "run id",
                run_id,
                "it must be 1 to 48 of a-z, 0-9 and `-`, with no `-` at either end",
                "for example maze-grpo-1",
            )
        )
    return run_id


def submission_id(run_id: str, attempt: int) -> str:
    """Ray's submission id of one attempt; unique for the cluster, so a fixed one would be refused the second time."""
    return f"{run_id}-a{attempt}"


# What Ray Serve takes as an adapter's id, one URL path segment; an alias has no step in its name, so the two never meet.
RELEASE = re.compile(r"^(?P<adapter>[a-z]([-a-z0-9]{0,61}[a-z0-9])?)-s(?P<step>\d{1,9})-(?P<digest>[0-9a-f]{8})$")


def release(adapter: str, *, step: int, digest: str) -> str:
    """Immutable name of a release: `<adapter>-s<step>-<first 8 of the content's digest>`."""
    return f"{adapter}-s{step}-{digest.removeprefix('sha256:')[:8]}"


def api_keys_secret(env: Environment) -> str:
    """Secret in the serving namespace with the endpoint's API keys, which its owner makes: no key is ever written by us."""
    return f"{env.serving.name}-api-keys"


def serve_service(env: Environment) -> str:
    """The Service that KubeRay makes in front of the endpoint's healthy pods."""
    return f"{env.serving.name[:50]}-serve-svc"


def load_balancer_service(env: Environment) -> str:
    """The Service of type LoadBalancer, where `serving.authentication` is internal-load-balancer."""
    return f"{env.serving.name[:50]}-internal"


def release_key(release: str, file: str = "") -> str:
    """Key of a release's file in the artifact bucket, or of its folder (with the slash at its end)."""
    return f"{ADAPTER_PREFIX}{release}/{file}"


def alias_key(alias: str) -> str:
    """Key of an alias in the artifact bucket."""
    return f"{ALIAS_PREFIX}{alias}.json"


def supervisor(run_id: str) -> str:
    """Name of the Deployment that watches over a run in the cluster, and of its ConfigMap: at most 58 characters."""
    return f"supervise-{run_id}"


def hang_log_groups(env: Environment) -> str:
    """What the names of the HyperPod cluster's log groups begin with; the cluster's id follows.

    https://docs.aws.amazon.com/sagemaker/latest/dg/sagemaker-hyperpod-eks-resiliency.html
    """
    return f"/aws/sagemaker/Clusters/{hyperpod_cluster(env)}/"


def run_folder(env: Environment, run_id: str) -> str:
    """Folder on the shared file system below which one run writes everything."""
    return f"{env.storage.file_system.mount_path}/runs/{run_id}"
