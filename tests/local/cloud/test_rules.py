"""What the services refuse is refused here, in words that say why."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from tests.local.cloud.conftest import Account, Template, eks, get, group, hyperpod, lustre, network, ref, resource, role

pytestmark = pytest.mark.cloud
Refusal = Callable[[Template], str]


def _observability() -> Template:
    return resource("AWS::EKS::Addon", ClusterName=ref("Eks"), AddonName="amazon-sagemaker-hyperpod-observability")


HYPERPOD = {
    "no API authentication": (hyperpod(mode="CONFIG_MAP"), "must use the authentication mode API or API_AND_CONFIG_MAP"),
    "no authentication mode": (hyperpod(mode=None), "but it uses CONFIG_MAP"),
    "no chart": (hyperpod(with_chart=False), "is missing one or more required dependencies"),
    "no policy": (hyperpod(policy=False), "Unable to retrieve subnets"),
    "custom taints with deep health checks": (
        hyperpod(
            group(
                "w",
                OnStartDeepHealthChecks=["InstanceStress"],
                KubernetesConfig={"Taints": [{"Key": "k", "Value": "v", "Effect": "NoSchedule"}]},
            )
        ),
        "Custom taints are not supported on instance group w",
    ),
    "two groups of one name": (hyperpod(group("a"), group("a")), "Instance group names must be unique"),
    "more at least than at all": (hyperpod(group("a", MinInstanceCount=2)), "must not be greater than its InstanceCount"),
    "more than the quota": (hyperpod(group("a", count=101)), "'ml.m5.4xlarge for cluster usage' is 100 Instances"),
    "no lifecycle script": (
        hyperpod(group("a", LifeCycleConfig={"SourceS3Uri": "s3://sagemaker-none", "OnCreate": "on_create.sh"})),
        "s3://sagemaker-none/on_create.sh of instance group a does not exist",
    ),
    "no training plan": (
        hyperpod(group("a", "ml.p5.48xlarge", TrainingPlanArn="arn:aws:sagemaker:us-west-2:000000000000:training-plan/none")),
        "training-plan/none of instance group a does not exist",
    ),
    "unknown subnet": (
        hyperpod(group("a", OverrideVpcConfig={"Subnets": ["subnet-0a"], "SecurityGroupIds": [ref("Group")]})),
        "The subnet ID 'subnet-0a' does not exist",
    ),
}


@pytest.mark.parametrize("case", HYPERPOD)
def test_hyperpod_refuses(case: str, refused: Refusal) -> None:
    template, message = HYPERPOD[case]
    assert message in refused(template)


FSX: dict[str, tuple[dict[str, Any], str]] = {
    "odd capacity": ({"StorageCapacity": 1800}, "Invalid storage capacity provided: 1800"),
    "odd throughput": (
        {"LustreConfiguration": {"PerUnitStorageThroughput": 200}},
        "PERSISTENT_2 SSD are 125, 250, 500, 1000",
    ),
    "no throughput": ({"LustreConfiguration": {"PerUnitStorageThroughput": None}}, "PerUnitStorageThroughput is required"),
    "throughput on scratch": ({"LustreConfiguration": {"DeploymentType": "SCRATCH_2"}}, "not supported for the deployment type SCRATCH_2"),
    "version too old": ({"FileSystemTypeVersion": "2.10"}, "is not supported for the deployment type PERSISTENT_2"),
    "no version": ({"FileSystemTypeVersion": None}, "2.10 (the default) is not supported"),
    "unknown version": ({"FileSystemTypeVersion": "2.99"}, "Invalid Lustre version 2.99"),
    "two subnets": ({"SubnetIds": [ref("SubnetA"), ref("SubnetB")]}, "Exactly one subnet ID"),
    "HDD on PERSISTENT_2": ({"StorageType": "HDD", "StorageCapacity": 6000}, "The storage type HDD is not supported"),
    "import path": ({"LustreConfiguration": {"ImportPath": "s3://b"}}, "use a data repository association"),
}


@pytest.mark.parametrize("case", FSX)
def test_fsx_refuses(case: str, refused: Refusal) -> None:
    changes, message = FSX[case]
    assert message in refused(lustre(**changes))


def test_fsx_does_not_shrink(account: Account) -> None:
    from tests.local.cloud.conftest import Refused

    account.deploy("shrink", lustre(StorageCapacity=2400))
    with pytest.raises(Refused, match="You can only increase") as failure:
        account.deploy("shrink", lustre(StorageCapacity=1200))
    assert failure.value.status == "UPDATE_ROLLBACK_COMPLETE"


def test_a_subnet_stays_while_a_file_system_uses_it(account: Account) -> None:
    """The file system is in a stack of its own; deleting the network below it must fail until it is gone."""
    made = account.deploy("below", network(), {"Subnet": ref("SubnetA"), "Group": ref("Group")})
    properties = lustre()["FileSystem"]["Properties"]
    above = {**properties, "SubnetIds": [made["Subnet"]], "SecurityGroupIds": [made["Group"]]}
    account.deploy("above", {"FileSystem": resource("AWS::FSx::FileSystem", **above)})
    assert account.destroy("below") == "DELETE_FAILED"
    assert account.destroy("above") == "DELETE_COMPLETE"
    assert account.destroy("below") == "DELETE_COMPLETE"


def test_eks_wants_two_zones(refused: Refusal) -> None:
    assert "at least two different AZs" in refused(eks(subnets=("SubnetA",)))


def test_the_observability_add_on_wants_a_ready_node(refused: Refusal) -> None:
    assert "no node is Ready" in refused({**eks(), "Addon": _observability()})


def test_the_observability_add_on_is_taken_once_a_node_runs(account: Account) -> None:
    account.deploy("cluster", hyperpod(), {"Name": ref("Eks")})
    _until_running(account, 1)
    addon = resource("AWS::EKS::Addon", ClusterName="tests", AddonName="amazon-sagemaker-hyperpod-observability")
    account.deploy("above", {"Addon": addon})
    assert account.client("eks").list_addons(clusterName="tests")["addons"] == ["amazon-sagemaker-hyperpod-observability"]


def _until_running(account: Account, count: int) -> None:
    import time

    deadline = time.monotonic() + 120
    while time.monotonic() < deadline:
        found = account.client("sagemaker").list_cluster_nodes(ClusterName="tests-hyperpod")["ClusterNodeSummaries"]
        if sum(n["InstanceStatus"]["Status"] == "Running" for n in found) == count:
            return
        time.sleep(0.05)
    raise AssertionError(f"{count} nodes never ran: {found}")


@pytest.mark.parametrize(
    ("resource_type", "properties"),
    [
        ("AWS::EKS::PodIdentityAssociation", {"Namespace": "n", "ServiceAccount": "s", "RoleArn": get("Role", "Arn")}),
        ("AWS::EKS::Addon", {"AddonName": "coredns"}),
        ("AWS::EKS::AccessEntry", {"PrincipalArn": get("Role", "Arn")}),
    ],
)
def test_what_belongs_to_eks_wants_its_cluster(resource_type: str, properties: dict[str, Any], refused: Refusal) -> None:
    template = {"Role": role("pods.eks.amazonaws.com"), "X": resource(resource_type, ClusterName="nobody", **properties)}
    assert "No cluster found for name: nobody." in refused(template)


def test_associations_overlap_neither_each_other_nor_nothing(account: Account, refused: Refusal) -> None:
    def association(path: str) -> Template:
        return resource(
            "AWS::FSx::DataRepositoryAssociation",
            FileSystemId=ref("FileSystem"),
            FileSystemPath=path,
            DataRepositoryPath={"Fn::Join": ["", ["s3://", ref("Bucket"), "/data"]]},
        )

    both = {"Bucket": resource("AWS::S3::Bucket"), "A": association("/data"), "B": {**association("/data/deep"), "DependsOn": "A"}}
    assert "overlaps" in refused({**lustre(), **both})


def test_a_group_keeps_the_type_that_it_was_made_with(account: Account) -> None:
    from tests.local.cloud.conftest import Refused

    account.deploy("cluster", hyperpod(group("a")))
    with pytest.raises(Refused, match="InstanceType of instance group a cannot be changed"):
        account.deploy("cluster", hyperpod(group("a", "ml.m5.8xlarge")))
