"""What each pod's role may and may not do, tried in a deployed environment with the credentials that the pod itself would get.

Every pod gets them as on AWS: its SDK asks the Pod Identity agent with the token of its service account.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import boto3
from botocore.credentials import ContainerProvider
from botocore.exceptions import ClientError

from config import names
from config.environment import Environment
from local import lifecycle
from local.cloud.services import pod_identity

Call = Callable[[boto3.Session], object]
DENIED = ("AccessDenied", "AccessDeniedException", "UnauthorizedOperation")


@dataclass(frozen=True)
class Identity:
    """A pod's service account, what it must be able to do, and what it must not."""

    namespace: str
    service_account: str
    allowed: Mapping[str, Call]
    denied: Mapping[str, Call]


def session(env: Environment, identity: Identity) -> boto3.Session:
    """A session with the credentials of the identity's pods."""
    running = lifecycle.status()
    assert running.ports is not None
    variables = pod_identity.environment(
        running.ports.cloud, cluster=names.eks_cluster(env), namespace=identity.namespace, service_account=identity.service_account
    )
    credentials = ContainerProvider(environ=variables).load()
    assert credentials is not None
    found = credentials.get_frozen_credentials()
    return boto3.Session(found.access_key, found.secret_key, found.token, region_name=env.region)


def _put(bucket: str, key: str) -> Call:
    return lambda pod: pod.client("s3").put_object(Bucket=bucket, Key=key, Body=b"x")


def _get(bucket: str, key: str) -> Call:
    return lambda pod: pod.client("s3").get_object(Bucket=bucket, Key=key)


def _delete(bucket: str, key: str) -> Call:
    return lambda pod: pod.client("s3").delete_object(Bucket=bucket, Key=key)


def _listed(bucket: str, prefix: str) -> Call:
    return lambda pod: pod.client("s3").list_objects_v2(Bucket=bucket, Prefix=prefix)


def _elsewhere(env: Environment) -> dict[str, Call]:
    """What no pod has any business with."""
    deployer = f"arn:aws:iam::{env.account}:role/cdk-hnb659fds-deploy-role-{env.account}-{env.region}"
    return {
        "list roles": lambda pod: pod.client("iam").list_roles(),
        "read the parameters": lambda pod: pod.client("ssm").get_parameters_by_path(Path=names.parameter_path(env)),
        "describe the cluster": lambda pod: pod.client("eks").describe_cluster(name=names.eks_cluster(env)),
        "scale the HyperPod cluster": lambda pod: pod.client("sagemaker").update_cluster(ClusterName=names.hyperpod_cluster(env)),
        "describe file systems": lambda pod: pod.client("fsx").describe_file_systems(),
        "describe instances": lambda pod: pod.client("ec2").describe_instances(),
        "start a build": lambda pod: pod.client("codebuild").start_build(projectName=f"{names.PREFIX}-{env.name}-image"),
        "delete a stack": lambda pod: pod.client("cloudformation").delete_stack(StackName=names.stack(env, names.Stack.NETWORK)),
        "list buckets": lambda pod: pod.client("s3").list_buckets(),
        "deploy": lambda pod: pod.client("sts").assume_role(RoleArn=deployer, RoleSessionName="a-pod"),
    }


def identities(env: Environment) -> list[Identity]:
    """The pods of an environment without a domain: training, the endpoint, the publisher, the supervisor, the collector."""
    bucket = names.artifact_bucket(env)
    scripts = names.lifecycle_bucket(env)
    run, adapter = f"{names.RUNS_PREFIX}drill/x", f"{names.ADAPTER_PREFIX}drill/x"
    events = f"{names.hang_log_groups(env)}collector"
    training = Identity(
        env.ray_cluster.namespace,
        names.TRAINING_SERVICE_ACCOUNT,
        {
            "write a run": _put(bucket, run),
            "read a run": _get(bucket, run),
            "list runs": _listed(bucket, names.RUNS_PREFIX),
            "delete from a run": _delete(bucket, run),
        },
        {
            "write an adapter": _put(bucket, adapter),
            "read an adapter": _get(bucket, adapter),
            "list adapters": _listed(bucket, names.ADAPTER_PREFIX),
            "list everything": _listed(bucket, ""),
            "change the nodes' script": _put(scripts, "lifecycle/on_create.sh"),
            "delete the bucket": lambda pod: pod.client("s3").delete_bucket(Bucket=bucket),
            **_elsewhere(env),
        },
    )
    serving = Identity(
        env.serving.namespace,
        names.SERVING_SERVICE_ACCOUNT,
        {"read an adapter": _get(bucket, adapter), "list adapters": _listed(bucket, names.ADAPTER_PREFIX)},
        {
            "write an adapter": _put(bucket, adapter),
            "delete an adapter": _delete(bucket, adapter),
            "read a run": _get(bucket, run),
            "write a run": _put(bucket, run),
            "list everything": _listed(bucket, ""),
            **_elsewhere(env),
        },
    )
    publishing = Identity(
        env.ray_cluster.namespace,
        names.RELEASE_SERVICE_ACCOUNT,
        {
            "write an adapter": _put(bucket, adapter),
            "read an adapter": _get(bucket, adapter),
            "list adapters": _listed(bucket, names.ADAPTER_PREFIX),
            "delete an adapter": _delete(bucket, adapter),
        },
        {
            "read a run": _get(bucket, run),
            "write a run": _put(bucket, run),
            "change the nodes' script": _put(scripts, "lifecycle/on_create.sh"),
            "delete the bucket": lambda pod: pod.client("s3").delete_bucket(Bucket=bucket),
            **_elsewhere(env),
        },
    )
    hangs = f"{names.hang_log_groups(env)}drill"
    supervising = Identity(
        env.ray_cluster.namespace,
        names.SUPERVISOR_SERVICE_ACCOUNT,
        {
            "write a run's record": _put(bucket, f"{names.RUNS_PREFIX}drill/record.json"),
            "look for hangs": lambda pod: pod.client("logs").filter_log_events(logGroupName=hangs, filterPattern="HANG_DETECTED"),
        },
        {
            "write anything else of a run": _put(bucket, run),
            "read a run": _get(bucket, run),
            "delete from a run": _delete(bucket, run),
            "list runs": _listed(bucket, names.RUNS_PREFIX),
            "write an adapter": _put(bucket, adapter),
            "change the nodes' script": _put(scripts, "lifecycle/on_create.sh"),
            "read another log": lambda pod: pod.client("logs").filter_log_events(logGroupName="/aws/lambda/other"),
            "write to the log of hangs": lambda pod: pod.client("logs").create_log_stream(logGroupName=hangs, logStreamName="s"),
            "delete the bucket": lambda pod: pod.client("s3").delete_bucket(Bucket=bucket),
            **_elsewhere(env),
        },
    )
    collector = Identity(
        names.OBSERVABILITY_NAMESPACE,
        names.OBSERVABILITY_SERVICE_ACCOUNT,
        {
            "make a log group": lambda pod: pod.client("logs").create_log_group(logGroupName=events),
            "make a stream": lambda pod: pod.client("logs").create_log_stream(logGroupName=events, logStreamName="s"),
        },
        {
            "make another log group": lambda pod: pod.client("logs").create_log_group(logGroupName="/aws/lambda/other"),
            "write another cluster's log": lambda pod: pod.client("logs").create_log_stream(
                logGroupName="/aws/sagemaker/Clusters/hyperpod-rl-other/1", logStreamName="s"
            ),
            "delete a log group": lambda pod: pod.client("logs").delete_log_group(logGroupName=events),
            "read a run": _get(bucket, run),
            "query metrics": lambda pod: pod.client("amp").list_workspaces(),
            **_elsewhere(env),
        },
    )
    return [training, serving, publishing, supervising, collector]


def problems(env: Environment, owner: boto3.Session) -> list[str]:
    """Every call that a role could not make and should, or could and should not. `owner` puts and removes what is read."""
    s3, logs, bucket = owner.client("s3"), owner.client("logs"), names.artifact_bucket(env)
    for key in (f"{names.RUNS_PREFIX}drill/x", f"{names.ADAPTER_PREFIX}drill/x"):
        s3.put_object(Bucket=bucket, Key=key, Body=b"x")
    logs.create_log_group(logGroupName=f"{names.hang_log_groups(env)}drill")
    found = []
    for identity in identities(env):
        pod = session(env, identity)
        called = f"{identity.namespace}/{identity.service_account}"
        found += [f"{called} cannot {what}: {said}" for what, call in identity.allowed.items() if (said := refusal(pod, call))]
        found += [f"{called} can {what}" for what, call in identity.denied.items() if not refusal(pod, call)]
    listed = s3.list_object_versions(Bucket=bucket)
    for version in [*listed.get("Versions", []), *listed.get("DeleteMarkers", [])]:
        s3.delete_object(Bucket=bucket, Key=version["Key"], VersionId=version["VersionId"])
    for name in ("collector", "drill"):
        logs.delete_log_group(logGroupName=f"{names.hang_log_groups(env)}{name}")
    return found


def refusal(pod: boto3.Session, call: Call) -> str:
    """Why a call was refused; empty when it was not. An error of another kind is one of this list, and raised."""
    try:
        call(pod)
    except ClientError as error:
        if error.response["Error"]["Code"] in DENIED:
            return str(error.response["Error"]["Message"])
        raise
    return ""
