"""What the templates of every environment hold, and what none may hold."""

from __future__ import annotations

import json
from collections.abc import Callable

import pytest

from config import load, names
from config.cloudformation import references
from config.environment import Environment
from operations import footprint
from operations.doctor import addons
from tests.stacks.assembly import Assembly, texts
from tests.stacks.conftest import EVERYTHING, changed

ENVIRONMENTS = ("reference", "production", "local")


@pytest.fixture(params=ENVIRONMENTS)
def both(request: pytest.FixtureRequest, assemblies: Callable[[str], Assembly]) -> tuple[Environment, Assembly]:
    return load.load(request.param), assemblies(request.param)


def test_every_stack_is_there_under_its_name(both: tuple[Environment, Assembly]) -> None:
    settings, assembly = both
    wanted = {which.value for which in names.Stack} - ({"Studio"} if not settings.studio.enabled else set())
    assert set(assembly.templates) == wanted
    manifest = json.loads((assembly.folder / "manifest.json").read_text())["artifacts"]
    assert {manifest[name]["properties"]["stackName"] for name in wanted} == {names.stack(settings, names.Stack(name)) for name in wanted}


def test_nothing_is_exported_or_imported(assembly: Assembly) -> None:
    """An export locks what it names: values cross stacks through SSM parameters."""
    for name, template in assembly.templates.items():
        assert "Fn::ImportValue" not in set(texts(template["Resources"])), name
        assert [output for output in template.get("Outputs", {}).values() if "Export" in output] == [], name
        assert "Fn::GetStackOutput" not in set(texts(template)), name


def test_every_parameter_that_a_stack_reads_is_written_by_a_stack_below(assembly: Assembly) -> None:
    def below(stack: str) -> set[str]:
        lower = set(assembly.below[stack])
        return lower.union(*(below(name) for name in lower)) if lower else lower

    written = {body["Properties"].get("Name"): name.split("/")[0] for name, body in assembly.resources("AWS::SSM::Parameter").items()}
    for stack, template in assembly.templates.items():
        for parameter, body in template["Parameters"].items():
            if body["Type"].startswith("AWS::SSM::Parameter::Value") and parameter != "BootstrapVersion":
                assert written[body["Default"]] in below(stack), f"{stack} reads {body['Default']}"


def test_every_function_has_a_log_group_with_retention_in_its_own_stack(both: tuple[Environment, Assembly]) -> None:
    """A function without one makes /aws/lambda/... by itself, which a destroy leaves behind."""
    settings, assembly = both
    functions = assembly.resources("AWS::Lambda::Function")
    assert len(functions) > 8
    for name, body in functions.items():
        stack = name.split("/")[0]
        (group,) = set(references(body["Properties"]["LoggingConfig"]["LogGroup"]))
        made = assembly.templates[stack]["Resources"][group]
        assert made["Type"] == "AWS::Logs::LogGroup", name
        assert made["Properties"]["RetentionInDays"] == settings.observability.log_retention_days, name
        assert made["DeletionPolicy"] == "Delete", name


def test_every_log_group_goes_with_its_stack(assembly: Assembly) -> None:
    assert {body["DeletionPolicy"] for body in assembly.resources("AWS::Logs::LogGroup").values()} == {"Delete"}


def test_the_hyperpod_cluster_is_what_the_environment_says(both: tuple[Environment, Assembly]) -> None:
    settings, assembly = both
    cluster = assembly.one("AWS::SageMaker::Cluster")
    assert cluster["ClusterName"] == names.hyperpod_cluster(settings)
    assert cluster["Orchestrator"]["Eks"]["ClusterArn"].endswith(f":cluster/{names.eks_cluster(settings)}")
    assert cluster["NodeRecovery"] == "Automatic"
    assert cluster["NodeProvisioningMode"] == "Continuous"
    shown = {(group["InstanceGroupName"], group["InstanceType"], group["InstanceCount"]) for group in cluster["InstanceGroups"]}
    assert shown == {(group.name, group.instance_type, group.count) for group in settings.instance_groups}
    for group in cluster["InstanceGroups"]:
        assert group["LifeCycleConfig"]["OnCreate"] == "on_create.sh"
        (bucket,) = set(references(group["LifeCycleConfig"]["SourceS3Uri"]))
        script_bucket = assembly.templates["HyperPod"]["Resources"][bucket]["Properties"]["BucketName"]
        assert script_bucket.startswith("sagemaker-"), "the managed policy of the nodes covers this prefix alone"
        assert group["InstanceStorageConfigs"][0]["EbsVolumeConfig"]["VolumeSizeInGB"] >= 2 * settings.image.size_gib


def test_eks_takes_access_entries_alone_and_lets_in_nobody_for_deploying(both: tuple[Environment, Assembly]) -> None:
    settings, assembly = both
    cluster = assembly.one("AWS::EKS::Cluster")
    assert cluster["Name"] == names.eks_cluster(settings)
    assert cluster["Version"] == settings.version_set.platform.kubernetes
    assert cluster["AccessConfig"] == {"AuthenticationMode": "API", "BootstrapClusterCreatorAdminPermissions": False}
    assert cluster["BootstrapSelfManagedAddons"] is False
    assert cluster["ComputeConfig"] == {"Enabled": False}, "HyperPod brings the nodes, not EKS Auto Mode"
    network = cluster["ResourcesVpcConfig"]
    assert network["EndpointPrivateAccess"] is True
    assert network["EndpointPublicAccess"] is (settings.access.endpoint == "public")
    logged = {entry["Type"] for entry in cluster["Logging"]["ClusterLogging"]["EnabledTypes"]}
    assert logged == {"api", "audit", "authenticator", "controllerManager", "scheduler"}
    assert ("EncryptionConfig" in cluster) is (settings.storage.encryption == "kms")


def test_nodes_come_from_hyperpod_alone(assembly: Assembly) -> None:
    kinds = {body["Type"] for template in assembly.templates.values() for body in template["Resources"].values()}
    assert kinds & {"AWS::EKS::Nodegroup", "AWS::EKS::FargateProfile", "AWS::AutoScaling::AutoScalingGroup"} == set()


def test_people_get_the_access_of_their_role_in_their_namespaces(assemblies: Callable[[str], Assembly]) -> None:
    entries = {
        body["Properties"]["PrincipalArn"]: body["Properties"]["AccessPolicies"]
        for body in assemblies("production").resources("AWS::EKS::AccessEntry", "Cluster").values()
        if isinstance(body["Properties"]["PrincipalArn"], str)
    }
    policy = "arn:aws:eks::aws:cluster-access-policy/"
    assert entries["arn:aws:iam::111122223333:role/PlatformAdministrator"] == [
        {"PolicyArn": f"{policy}AmazonEKSClusterAdminPolicy", "AccessScope": {"Type": "cluster"}}
    ]
    assert entries["arn:aws:iam::111122223333:role/Researcher"] == [
        {"PolicyArn": f"{policy}AmazonSagemakerHyperpodTrainingPolicy", "AccessScope": {"Type": "namespace", "Namespaces": ["training"]}},
        {"PolicyArn": f"{policy}AmazonSagemakerHyperpodUserClusterPolicy", "AccessScope": {"Type": "cluster"}},
    ]


def test_every_add_on_is_pinned_and_goes_with_its_stack(both: tuple[Environment, Assembly]) -> None:
    settings, assembly = both
    pinned = settings.version_set.platform.addons
    addons = [body["Properties"] for body in assembly.resources("AWS::EKS::Addon").values()]
    assert {addon["AddonName"]: addon["AddonVersion"] for addon in addons} == {
        addon["AddonName"]: pinned[addon["AddonName"]] for addon in addons
    }
    assert {"vpc-cni", "coredns", "kube-proxy", "eks-pod-identity-agent", "aws-fsx-csi-driver", "cert-manager"} <= {
        a["AddonName"] for a in addons
    }
    assert not any(addon["PreserveOnDelete"] for addon in addons)
    (cni,) = [addon for addon in addons if addon["AddonName"] == "vpc-cni"]
    assert json.loads(cni["ConfigurationValues"]) == {"enableNetworkPolicy": "true"}


def test_cert_manager_comes_once(assembly: Assembly) -> None:
    """The dependency chart carries one too; two of them fight over one set of CRDs."""
    charts = [body["Properties"] for body in assembly.resources("Custom::AWSCDK-EKS-HelmChart", "HyperPod").values()]
    (chart,) = charts
    assert json.loads(chart["Values"])["cert-manager"] == {"enabled": False}
    assert sum(body["Properties"]["AddonName"] == "cert-manager" for body in assembly.resources("AWS::EKS::Addon").values()) == 1


def test_device_plugins_run_on_the_environments_own_types(both: tuple[Environment, Assembly]) -> None:
    settings, assembly = both
    (chart,) = assembly.resources("Custom::AWSCDK-EKS-HelmChart", "HyperPod").values()
    values = json.loads(chart["Properties"]["Values"])
    terms = values["nvidia-device-plugin"]["affinity"]["nodeAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"][
        "nodeSelectorTerms"
    ]
    gpu_types = {group.instance_type for group in settings.instance_groups if group.gpus}
    assert set(terms[0]["matchExpressions"][0]["values"]) == gpu_types
    assert set(values["aws-efa-k8s-device-plugin"]["supportedInstanceLabels"]["values"]) == {
        group.instance_type for group in settings.instance_groups if group.instance.efa_interfaces
    }


def test_a_chart_waits_only_where_nodes_are_there_and_not_longer_than_ten_minutes(assembly: Assembly) -> None:
    for name, body in assembly.resources("Custom::AWSCDK-EKS-HelmChart").items():
        if name.startswith("Platform/"):
            assert body["Properties"]["Wait"] is True, name
            assert int(body["Properties"]["Timeout"].removesuffix("s")) <= 600, name
        else:
            assert "Wait" not in body["Properties"], name
        assert body["Properties"]["Version"], f"{name} installs whatever is newest"


def test_the_file_system_is_what_the_environment_says(both: tuple[Environment, Assembly]) -> None:
    settings, assembly = both
    wanted = settings.storage.file_system
    made = assembly.one("AWS::FSx::FileSystem")
    assert (made["FileSystemType"], made["FileSystemTypeVersion"], made["StorageType"]) == ("LUSTRE", "2.15", "SSD")
    assert made["StorageCapacity"] == wanted.capacity_gib
    assert made["LustreConfiguration"]["DeploymentType"] == "PERSISTENT_2"
    assert made["LustreConfiguration"]["PerUnitStorageThroughput"] == wanted.throughput_mbps_per_tib
    assert made["LustreConfiguration"]["DataCompressionType"] == wanted.compression


def test_the_volume_names_the_deployed_file_system(assembly: Assembly) -> None:
    (objects,) = [
        body for name, body in assembly.resources("Custom::AWSCDK-EKS-KubernetesResource", "Platform").items() if "Objects" in name
    ]
    refs = set(references(objects["Properties"]["Manifest"]))
    assert {"FileSystemId", "FileSystemDnsName", "FileSystemMountName"} <= refs
    assert "${FILE_SYSTEM" not in json.dumps(objects["Properties"])


def test_nodes_speak_efa_and_lustre_in_both_directions(assembly: Assembly) -> None:
    rules = {
        (
            kind,
            body["Properties"]["IpProtocol"],
            body["Properties"].get("FromPort"),
            body["Properties"].get("ToPort"),
            side(kind, body["Properties"]),
        )
        for kind in ("Ingress", "Egress")
        for body in assembly.resources(f"AWS::EC2::SecurityGroup{kind}", "Network").values()
    }
    nodes, lustre, plane = "NodesGroup", "FileSystemGroup", "ControlPlaneGroup"
    for kind in ("Ingress", "Egress"):
        assert (kind, "-1", None, None, (nodes, nodes)) in rules
        for low, high in ((988, 988), (1018, 1023)):
            for pair in ((nodes, lustre), (lustre, nodes), (lustre, lustre)):
                assert (kind, "tcp", low, high, pair) in rules
        assert (kind, "tcp", 443, 443, (nodes, plane)) in rules
        assert any(rule[0] == kind and rule[4] == (plane, nodes) and rule[2] <= 10250 <= rule[3] for rule in rules if rule[2])


def side(kind: str, properties: dict[str, object]) -> tuple[str, str]:
    own = next(references(properties["GroupId"]))
    other = next(references(properties["SourceSecurityGroupId" if kind == "Ingress" else "DestinationSecurityGroupId"]))
    return (other, own) if kind == "Ingress" else (own, other)


def test_no_group_lets_anyone_in_from_the_internet(assembly: Assembly) -> None:
    for name, body in assembly.resources("AWS::EC2::SecurityGroup").items():
        assert "0.0.0.0/0" not in json.dumps(body["Properties"].get("SecurityGroupIngress", [])), name
        assert body["Properties"]["SecurityGroupEgress"], f"{name} would get EC2's rule to everywhere"
    for name, body in assembly.resources("AWS::EC2::SecurityGroupIngress").items():
        assert "CidrIp" not in body["Properties"], name


def test_security_groups_and_their_rules_belong_to_network(assembly: Assembly) -> None:
    for kind in ("AWS::EC2::SecurityGroup", "AWS::EC2::SecurityGroupIngress", "AWS::EC2::SecurityGroupEgress"):
        assert {name.split("/")[0] for name in assembly.resources(kind)} <= {"Network"}


def test_buckets_take_tls_only_and_no_public(assembly: Assembly) -> None:
    for name, body in assembly.resources("AWS::S3::Bucket").items():
        blocked = body["Properties"]["PublicAccessBlockConfiguration"]
        assert len(blocked) == 4, name
        assert all(blocked.values()), name
    refused = [
        statement
        for body in assembly.resources("AWS::S3::BucketPolicy").values()
        for statement in body["Properties"]["PolicyDocument"]["Statement"]
    ]
    secure = [
        statement
        for statement in refused
        if statement["Effect"] == "Deny" and statement["Condition"].get("Bool") == {"aws:SecureTransport": "false"}
    ]
    assert len(secure) == len(assembly.resources("AWS::S3::Bucket"))


def test_serving_reads_adapters_and_training_writes_runs(assembly: Assembly) -> None:
    allowed = {}
    for name, body in assembly.resources("AWS::IAM::Role", "Platform").items():
        for policy in body["Properties"].get("Policies", []):
            for statement in policy["PolicyDocument"]["Statement"]:
                actions = statement["Action"] if isinstance(statement["Action"], list) else [statement["Action"]]
                for action in actions:
                    allowed.setdefault(name.split("/")[1].split("Role")[0], {})[action] = statement
    assert "s3:PutObject" not in allowed["Serving"]
    assert str(allowed["Serving"]["s3:GetObject"]["Resource"]).endswith("/lora-adapters/*")
    assert str(allowed["Training"]["s3:PutObject"]["Resource"]).endswith("/runs/*")
    assert allowed["Serving"]["s3:ListBucket"]["Condition"] == {"StringLike": {"s3:prefix": ["lora-adapters/*"]}}


def test_pod_roles_trust_this_cluster_alone(both: tuple[Environment, Assembly]) -> None:
    settings, assembly = both
    roles = [body["Properties"]["AssumeRolePolicyDocument"]["Statement"] for body in assembly.resources("AWS::IAM::Role").values()]
    pods = [trust for trust in roles if "pods.eks.amazonaws.com" in json.dumps(trust)]
    assert len(pods) >= 3
    for (statement,) in pods:
        assert set(statement["Action"]) == {"sts:AssumeRole", "sts:TagSession"}
        assert statement["Condition"]["StringEquals"] == {"aws:SourceAccount": settings.account}
        assert statement["Condition"]["ArnEquals"]["aws:SourceArn"].endswith(f"cluster/{names.eks_cluster(settings)}")


def test_observability_has_the_new_shape(both: tuple[Environment, Assembly]) -> None:
    settings, assembly = both
    addon = assembly.one("AWS::EKS::Addon", "Observability")
    text = addon["ConfigurationValues"]
    if not isinstance(text, str):
        text = "".join(part if isinstance(part, str) else f"<{part['Ref']}>" for part in text["Fn::Join"][1])
    configuration = json.loads(text)
    provider = configuration["metricsProvider"]
    assert provider["rayMetrics"]["level"] == settings.observability.ray_metrics
    assert "clusterMetrics" in provider
    assert provider["logging"] == {"enabled": settings.observability.logging}
    assert "customMetrics" not in provider
    assert "logging" not in configuration
    assert not configuration["ampWorkspace"]["prometheusEndpoint"].endswith("/")
    assert addon["PodIdentityAssociations"][0]["ServiceAccount"] == names.OBSERVABILITY_SERVICE_ACCOUNT


def test_the_wait_for_nodes_stays_below_cloudformations_hour(both: tuple[Environment, Assembly]) -> None:
    settings, assembly = both
    (waiter,) = assembly.resources("Custom::NodesReady").values()
    properties = waiter["Properties"]
    assert int(properties["ServiceTimeout"]) <= 3600
    assert 60 * int(properties["TimeoutMinutes"]) < int(properties["ServiceTimeout"])
    assert [(group["Name"], int(group["Count"]), int(group["Gpus"])) for group in properties["Groups"]] == [
        (group.name, group.count, group.instance.gpus) for group in settings.instance_groups
    ]


def test_retained_data_is_protected_and_so_is_the_network_that_it_lives_in(
    reference: Assembly, assemblies: Callable[[str], Assembly]
) -> None:
    assert reference.protected == {"Network", "Data"}
    assert assemblies("local").protected == frozenset()
    assert assemblies("production").protected == set(assemblies("production").templates)
    kept = {
        name
        for stack in reference.templates
        for name, body in reference.templates[stack]["Resources"].items()
        if body.get("DeletionPolicy") != "Delete" and "DeletionPolicy" in body
    }
    assert {"FileSystem", "Vpc", "HyperPodSubnet", "FileSystemGroup", "Images"} <= kept
    assert {reference.templates["Data"]["Resources"]["FileSystem"]["DeletionPolicy"]} == {"RetainExceptOnCreate"}


def test_destroy_keeps_nothing(assemblies: Callable[[str], Assembly]) -> None:
    local = assemblies("local")
    kept = [
        f"{stack}/{name}"
        for stack, template in local.templates.items()
        for name, body in template["Resources"].items()
        if body.get("DeletionPolicy", "Delete") != "Delete"
    ]
    assert kept == []
    assert local.one("AWS::ECR::Repository", "Data")["EmptyOnDelete"] is True
    emptied = local.resources("Custom::EmptiedBucket")
    assert len(emptied) == 1
    assert "Custom::S3AutoDeleteObjects" not in {
        body["Type"] for template in local.templates.values() for body in template["Resources"].values()
    }


def test_nothing_in_a_template_names_this_machine_or_a_credential(assembly: Assembly) -> None:
    text = json.dumps(assembly.templates)
    assert str(load.ROOT) not in text
    for word in ("AKIA", "aws_secret", "BEGIN PRIVATE KEY", "BEGIN RSA"):
        assert word not in text


@pytest.mark.parametrize("name", ["reference", "production", "local", "everything"])
def test_doctor_asks_for_the_add_ons_that_the_stacks_install_and_no_other(
    name: str, assemblies: Callable[[str], Assembly], request: pytest.FixtureRequest
) -> None:
    """One more would fail a deployment that never wanted it."""
    made = request.getfixturevalue("everything") if name == "everything" else assemblies(name)
    settings = changed("reference", EVERYTHING) if name == "everything" else load.load(name)
    installed = {body["Properties"]["AddonName"]: body["Properties"]["AddonVersion"] for body in made.resources("AWS::EKS::Addon").values()}
    assert addons.wanted(settings) == installed


def test_what_costs_is_counted_alike_in_the_environment_and_in_its_templates(everything: Assembly) -> None:
    """Of the shipped environments tests/operations/review holds them together; here is all that can be added."""
    assert footprint.of_templates(everything.templates) == footprint.of_environment(changed("reference", EVERYTHING))
