"""What a change does to a training that runs while it is deployed: nothing, pods that restart, nodes that go, or data that is lost.

Where AWS says nothing, the worse of what it could be is taken, and the note says that it is inferred.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from enum import IntEnum
from typing import Any

from operations.review.kubernetes import ObjectChange
from operations.review.resources import ITS_FUNCTION, ResourceChange
from operations.review.values import plain

Json = Mapping[str, Any]


class Effect(IntEnum):
    """On a running job; each is worse than the one before."""

    NOTHING = 0
    POD_RESTART = 1
    NODE_REPLACEMENT = 2
    DATA_LOSS = 3

    @property
    def word(self) -> str:
        """For people."""
        return ("nothing", "pod restart", "node replacement", "data loss")[self]


Judged = tuple[Effect, str]
THROUGHPUT = "LustreConfiguration/PerUnitStorageThroughput"
# https://docs.aws.amazon.com/fsx/latest/LustreGuide/increase-throughput-capacity.html
_IN_PLACE = " (that a stack replaces it is inferred; `aws fsx update-file-system` changes it in place)"
HYPERPOD, EKS, FSX = "AWS::SageMaker::Cluster", "AWS::EKS::Cluster", "AWS::FSx::FileSystem"
# What holds something that nobody can make again.
DATA = {
    FSX: "the file system with checkpoints, exports and records",
    "AWS::S3::Bucket": "the bucket with its objects",
    "AWS::ECR::Repository": "the image repository with its images",
    "AWS::APS::Workspace": "the metrics of this workspace",
    "AWS::KMS::Key": "whatever was encrypted with this key",
    "AWS::EFS::FileSystem": "the home directories on it",
    "AWS::SageMaker::Domain": "the Studio domain with its home directories",
    "AWS::Grafana::Workspace": "the dashboards, users and data sources that people made in this workspace",
    "AWS::EC2::Volume": "what is on the volume",
    "AWS::DynamoDB::Table": "the items of the table",
    "AWS::RDS::DBInstance": "the database",
    "AWS::RDS::DBCluster": "the databases of the cluster",
    "AWS::SecretsManager::Secret": "the secret",
    "AWS::Backup::BackupVault": "the backups in the vault",
}
# Where nodes stand: they and what they carry go when it goes.
_NODES = {HYPERPOD, EKS, "AWS::EC2::Subnet", "AWS::EC2::VPC", "AWS::EC2::VPCCidrBlock"}
# A subnet with such a tag is for load balancers and the control plane; nodes stand in the one without (stacks/network.py).
_NO_NODES_TAG = "kubernetes.io/role/"
# Repositories that this project fills by itself: mirrors of charts and of other people's images (config/images.py, stacks/charts.py).
_MIRRORS = ("/charts/", "/images/")
# A role that pods or nodes act with.
_WORKERS = ("pods.eks.amazonaws.com", "sagemaker.amazonaws.com")
# What running pods reach others through; a job of several nodes hangs in its next collective when it goes.
_PATHS = {
    "AWS::EC2::SecurityGroupIngress", "AWS::EC2::SecurityGroupEgress", "AWS::EC2::SecurityGroup", "AWS::EC2::RouteTable",
    "AWS::EC2::SubnetRouteTableAssociation",
}  # fmt: skip
_IDENTITY = {"AWS::EKS::PodIdentityAssociation", "AWS::IAM::Role", "AWS::IAM::Policy"}
# A group keeps these for life; local/cloud and the API's own message: "cannot be changed after it was created".
_FIXED = ("InstanceType", "CapacityRequirements", "OverrideVpcConfig")
# Read when a node is made.
_NEW_NODES_ONLY = ("LifeCycleConfig", "OnStartDeepHealthChecks", "InstanceCount", "MinInstanceCount", "ImageId")


def of_resource(change: ResourceChange) -> Judged:
    """Effect of one resource's change, and why."""
    if change.action == "added":
        return Effect.NOTHING, ""
    if change.action == "changed":
        return _in_place(change)
    replaced = "would be replaced by a new one" if change.refusal else "is replaced by a new one"
    gone = replaced if change.action == "replaced" else "is removed"
    if change.type in DATA:
        return _data(change, gone)
    if change.type in _NODES:
        if _NO_NODES_TAG in str(change.before):
            return Effect.NOTHING, f"it {gone}: load balancers and the control plane's interfaces in it move"
        return Effect.NODE_REPLACEMENT, f"it {gone}, and the nodes in it with their pods"
    if change.type in _PATHS:
        why = "in the moment between the old rule and the new one" if change.action == "replaced" else "from then on"
        return Effect.POD_RESTART, f"it {gone}: connections that need it end {why} (inferred)"
    if change.type in _IDENTITY:
        if change.type == "AWS::EKS::PodIdentityAssociation" or any(name in str(change.before) for name in _WORKERS):
            return Effect.POD_RESTART, f"it {gone}: pods that use it are refused by AWS until they start anew (inferred)"
        return Effect.NOTHING, f"it {gone}: whoever acts with it is refused from then on"
    if change.type == "AWS::EC2::NatGateway":
        return Effect.NOTHING, f"it {gone}: open connections to the internet end"
    return Effect.NOTHING, ""


def _data(change: ResourceChange, gone: str) -> Judged:
    what = DATA[change.type]
    if any(part in str(plain((change.before or {}).get("Properties", {})).get("RepositoryName")) for part in _MIRRORS):
        return Effect.NOTHING, f"it {gone}: a mirror, which the deploy fills again where it is still wanted"
    if change.type == FSX and change.refusal:
        return Effect.NOTHING, "it stays as it is" + (_IN_PLACE if THROUGHPUT in change.forced_by else "")
    if change.type == FSX:
        stays = "the old one stays in the account, unmanaged" if change.kept else f"{what} is deleted"
        new = (
            "the new file system is empty, unless it comes from a backup"
            if change.action == "replaced"
            else "nothing here knows it any more"
        )
        return Effect.DATA_LOSS, f"{new}; {stays}"
    if change.kept:
        return Effect.NOTHING, f"it {gone}; the old one stays in the account, unmanaged, and costs"
    return Effect.DATA_LOSS, f"lost: {what}"


def _in_place(change: ResourceChange) -> Judged:
    if change.perhaps and change.forced_by != (ITS_FUNCTION,):
        return Effect.NODE_REPLACEMENT if change.type in _NODES else Effect.NOTHING, (
            f"a change of {', '.join(change.forced_by)} replaces it in some cases; the change set says which (review --live)"
        )
    if change.type == HYPERPOD:
        return _hyperpod(plain((change.before or {}).get("Properties", {})), plain((change.after or {}).get("Properties", {})))
    if change.type == FSX:
        return _file_system(plain((change.before or {}).get("Properties", {})), plain((change.after or {}).get("Properties", {})))
    if change.type == EKS and any(each.path == "Version" for each in change.differences):
        if why := _version(*(str(plain((side or {}).get("Properties", {})).get("Version")) for side in (change.before, change.after))):
            return Effect.NOTHING, why
        return Effect.NOTHING, "the control plane is upgraded; pods run on, the API server answers with short gaps (inferred)"
    if change.type == "AWS::EKS::Addon":
        return Effect.NOTHING, "the add-on's own pods start anew; Ray's pods run on (inferred)"
    if change.type == "Custom::AWSCDK-EKS-HelmChart":
        return Effect.NOTHING, "the chart's own pods start anew; Ray's pods run on (inferred)"
    return Effect.NOTHING, ""


def _version(before: str, after: str) -> str:
    """https://docs.aws.amazon.com/eks/latest/userguide/update-cluster.html"""
    try:
        old, new = ([int(part) for part in version.split(".")] for version in (before, after))
    except ValueError:
        return ""
    if old[0] == new[0] and new[1] == old[1] + 1:
        return ""
    return f"EKS refuses to go from Kubernetes {before} to {after}: it goes up only, one minor version at a time, so the deploy fails there"


def _hyperpod(before: Json, after: Json) -> Judged:
    olds, news = (_groups(side) for side in (before, after))
    lost = dict(lost_nodes(before, after))
    found: list[Judged] = [(Effect.NOTHING, _recovery(before, after)), *((Effect.NODE_REPLACEMENT, note) for note in lost.values())]
    for name, old in olds.items():
        new = news.get(name)
        if new is None:
            continue
        fixed = [field for field in _FIXED if old.get(field) != new.get(field)]
        if fixed:
            what = " and ".join(fixed)
            note = f"HyperPod refuses another {what} for group {name} that exists: give it another name, and its nodes go"
            found.append((Effect.NODE_REPLACEMENT, note))
        if (old.get("KubernetesConfig") or {}).get("Taints") != (new.get("KubernetesConfig") or {}).get("Taints"):
            found.append((Effect.POD_RESTART, f"group {name} has other taints: NoExecute evicts pods that do not tolerate them"))
        others = sorted(
            field for field in {*old, *new} - {*_FIXED, *_NEW_NODES_ONLY, "KubernetesConfig"} if old.get(field) != new.get(field)
        )
        if others:
            found.append((Effect.NODE_REPLACEMENT, f"{', '.join(others)} of group {name}: its nodes may be made anew (inferred)"))
    worst = max(effect for effect, _ in found)
    return worst, "; ".join(note for _, note in found if note)


def _recovery(before: Json, after: Json) -> str:
    automatic = [side.get("NodeRecovery", "Automatic") == "Automatic" for side in (before, after)]
    return "HyperPod no longer replaces a node that is ill: a run that loses one waits for a person" if automatic == [True, False] else ""


def lost_nodes(before: Json, after: Json) -> Iterator[tuple[str, str]]:
    """Each instance group that has nodes and keeps not all of them, and what that does; of a HyperPod cluster's properties."""
    olds, news = _groups(before), _groups(after)
    for name, old in olds.items():
        had, has = _count(old), _count(news.get(name, {}))
        if has >= had:
            continue
        if name not in news:
            what = f"group {name} goes with its {had} nodes (a group under another name has new ones)"
        else:
            what = f"group {name} loses {had - has} of its {had} nodes" + ("; HyperPod chooses which" if has else "")
        yield name, f"{what}: what runs there ends, and a training goes on from its last checkpoint on as many GPUs as before only"


def _groups(properties: Json) -> dict[str, Json]:
    return {str(group.get("InstanceGroupName")): group for group in properties.get("InstanceGroups", ())}


def _count(group: Json) -> int:
    return int(group.get("InstanceCount", 0))


def _file_system(before: Json, after: Json) -> Judged:
    old, new = (int(side.get("StorageCapacity", 0)) for side in (before, after))
    if new < old:
        return Effect.NOTHING, f"FSx refuses to shrink from {old} to {new} GiB, so the deploy fails there"
    if new != old or before.get("LustreConfiguration") != after.get("LustreConfiguration"):
        return Effect.NOTHING, "FSx changes it while it is used; reads and writes are slower for hours (inferred)"
    return Effect.NOTHING, ""


def of_object(change: ObjectChange) -> Judged:
    """Effect of one Kubernetes object's change, and why. `cdk deploy` does not touch what the launcher applies."""
    if change.action == "added":
        return Effect.NOTHING, ""
    if change.kind == "RayCluster":
        if change.action == "removed":
            return Effect.NOTHING, (
                "a running one stays and keeps its GPUs, and the launcher no longer knows its name: "
                "`cluster down` before this change, with the environment as it was"
            )
        if any(each.path.startswith("spec") for each in change.differences):
            return Effect.POD_RESTART, "at the next `cluster up`, which asks first: KubeRay makes all of its pods anew"
        return Effect.NOTHING, ""
    if change.kind == "RayService":
        return Effect.NOTHING, "the endpoint's pods are made anew at the next `serve up`; a training runs on"
    if change.action == "removed":
        if change.kind == "Namespace":
            return Effect.POD_RESTART, "everything in the namespace goes with it"
        if change.kind in ("PersistentVolumeClaim", "PersistentVolume", "ServiceAccount"):
            return Effect.POD_RESTART, "pods that use it cannot start any more"
        return Effect.NOTHING, ""
    if change.kind in ("PersistentVolume", "PersistentVolumeClaim") and any(each.path.startswith("spec") for each in change.differences):
        return Effect.POD_RESTART, "the API server refuses to change the specification of one that exists: it has to be made anew"
    if change.kind == "NetworkPolicy":
        return Effect.NOTHING, "open connections that it no longer allows end"
    return Effect.NOTHING, ""
