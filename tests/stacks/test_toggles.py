"""What each choice of an environment adds and takes away, by type and logical id, in the stack that it touches."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path

import pytest
from aws_cdk import App

from config.environment import Environment
from stacks.cluster import Cluster
from stacks.data import Data
from stacks.hyperpod import HyperPod
from stacks.observability import Observability
from stacks.platform import Platform
from stacks.stack import EnvironmentStack
from stacks.studio import Studio
from stacks.telemetry import Telemetry
from stacks.wiring import build
from tests.stacks.assembly import Assembly, graph, synthesize
from tests.stacks.conftest import Resources, by_type

Variant = Callable[..., Environment]


def test_own_keys_reach_bucket_file_system_images_and_secrets(variant: Variant, resources: Callable[..., Resources]) -> None:
    settings = variant("reference", {"storage.encryption": "kms"})
    data = resources(Data, settings)
    assert [body["Type"] for body in data.values()].count("AWS::KMS::Key") == 1
    text = json.dumps(data)
    assert "KmsKeyId" in data["FileSystem"]["Properties"]  # type: ignore[operator]
    assert '"EncryptionType": "KMS"' in text
    assert '"SSEAlgorithm": "aws:kms"' in text
    cluster = resources(Cluster, settings)
    (eks,) = [body for body in cluster.values() if body["Type"] == "AWS::EKS::Cluster"]
    assert eks["Properties"]["EncryptionConfig"][0]["Resources"] == ["secrets"]  # type: ignore[index]
    assert "kms:GenerateDataKey" in json.dumps(resources(Platform, settings))


def test_export_to_s3_links_the_runs_folder(variant: Variant, resources: Callable[..., Resources]) -> None:
    made = resources(Data, variant("reference", {"storage.file_system.export_to_s3": True}))
    properties = made["RunsExport"]["Properties"]
    assert properties["FileSystemPath"] == "/runs"  # type: ignore[index]
    assert properties["S3"] == {"AutoExportPolicy": {"Events": ["NEW", "CHANGED", "DELETED"]}}  # type: ignore[index]
    assert "RunsExport" not in resources(Data, variant("reference", {}))


def test_removal_decides_what_stays_and_what_is_emptied(variant: Variant, resources: Callable[..., Resources]) -> None:
    def kinds(removal: str) -> tuple[Resources, set[object]]:
        made = resources(Data, variant("reference", {"storage.removal": removal}))
        return made, {body["Type"] for body in made.values()}

    destroy, destroy_kinds = kinds("destroy")
    backup, backup_kinds = kinds("backup")
    retain, retain_kinds = kinds("retain")
    assert "Custom::EmptiedBucket" in destroy_kinds
    assert "Custom::FinalBackup" in backup_kinds
    assert {"Custom::EmptiedBucket", "Custom::FinalBackup"} & retain_kinds == set()
    assert [made["FileSystem"]["DeletionPolicy"] for made in (destroy, backup, retain)] == ["Delete", "Delete", "RetainExceptOnCreate"]


def test_a_restored_file_system_comes_from_its_backup(variant: Variant, resources: Callable[..., Resources]) -> None:
    made = resources(Data, variant("reference", {"storage.file_system.restore_from_backup": "backup-0123456789abcdef0"}))
    assert made["FileSystem"]["Properties"]["BackupId"] == "backup-0123456789abcdef0"  # type: ignore[index]


def test_a_group_carries_spot_plan_checks_labels_taints_and_threads(variant: Variant, resources: Callable[..., Resources]) -> None:
    plan = "arn:aws:sagemaker:us-west-2:111122223333:training-plan/mine"
    settings = variant(
        "reference",
        {
            "instance_groups.0.capacity": "spot",
            "instance_groups.0.labels": {"team": "rl"},
            "instance_groups.0.taints": [{"key": "system", "value": "only", "effect": "NoSchedule"}],
            "instance_groups.1.threads_per_core": 1,
            "instance_groups.2.training_plan_arn": plan,
        },
    )
    system, head, workers = resources(HyperPod, settings)["HyperPod"]["Properties"]["InstanceGroups"]  # type: ignore[index]
    assert system["CapacityRequirements"] == {"Spot": {}}
    assert system["KubernetesConfig"] == {"Labels": {"team": "rl"}, "Taints": [{"Key": "system", "Value": "only", "Effect": "NoSchedule"}]}
    assert head["ThreadsPerCore"] == 1
    assert workers["TrainingPlanArn"] == plan
    assert workers["OnStartDeepHealthChecks"] == ["InstanceStress"]
    assert "CapacityRequirements" not in workers


def test_karpenter_and_tiered_storage(variant: Variant, resources: Callable[..., Resources]) -> None:
    made = resources(HyperPod, variant("reference", {"hyperpod.autoscaling": "karpenter", "hyperpod.tiered_storage_percent": 20}))
    properties = made["HyperPod"]["Properties"]
    assert properties["AutoScaling"] == {"Mode": "Enable", "AutoScalerType": "Karpenter"}  # type: ignore[index]
    assert properties["TieredStorageConfig"] == {"Mode": "Enable", "InstanceMemoryAllocationPercentage": 20}  # type: ignore[index]
    assert any(name.startswith("ScalerRole") for name in made)
    plain = resources(HyperPod, variant("reference", {}))
    assert {"AutoScaling", "TieredStorageConfig", "ClusterRole"} & set(plain["HyperPod"]["Properties"]) == set()  # type: ignore[call-overload]


@pytest.mark.parametrize(("choice", "providers"), [("identity-center", ["AWS_SSO"]), ("saml", ["SAML"]), ("none", None)])
def test_grafana_is_a_choice(variant: Variant, resources: Callable[..., Resources], choice: str, providers: list[str] | None) -> None:
    settings = variant("reference", {"observability.grafana": choice})
    made = resources(Telemetry, settings)
    tags = resources(HyperPod, settings)["HyperPod"]["Properties"]["Tags"]  # type: ignore[index]
    configuration = json.dumps(resources(Observability, settings)["AddOn"])
    if providers is None:
        assert "Grafana" not in made
    else:
        assert made["Grafana"]["Properties"]["AuthenticationProviders"] == providers  # type: ignore[index]
    assert ("grafana-workspace" in {tag["Key"] for tag in tags}) is (providers is not None)
    assert ("amgWorkspace" in configuration) is (providers is not None)
    assert "Prometheus" in made


def test_without_observability_two_stacks_are_missing(variant: Variant, tmp_path: Path) -> None:
    settings = variant("reference", {"observability.enabled": False})

    def names(app: App) -> None:
        assert {stack.node.id for stack in build(app, settings)} == {"Network", "Data", "Cluster", "HyperPod", "NodesReady", "Platform"}

    synthesize(settings, tmp_path / "out", only=names)


def test_a_budget_is_made_when_it_is_named(variant: Variant, resources: Callable[..., Resources]) -> None:
    made = resources(Observability, variant("reference", {"observability.monthly_budget_usd": 30000}))
    assert made["Budget"]["Properties"]["Budget"]["BudgetLimit"] == {"Amount": 30000, "Unit": "USD"}  # type: ignore[index]
    assert "Budget" not in resources(Observability, variant("reference", {}))


PLAN = "arn:aws:sagemaker:us-west-2:111122223333:training-plan/mine"


def waits(provider: str, *functions: str) -> dict[str, str]:
    """What CDK's provider framework makes, and our functions that it calls."""
    made = {f"{provider}waiterstatemachine": "AWS::StepFunctions::StateMachine", f"{provider}waiterstatemachineRole": "AWS::IAM::Role"}
    made[f"{provider}waiterstatemachineRoleDefaultPolicy"] = "AWS::IAM::Policy"
    for handler in ("onEvent", "isComplete", "onTimeout"):
        own = f"{provider}framework{handler}"
        made |= {own: "AWS::Lambda::Function", f"{own}ServiceRole": "AWS::IAM::Role", f"{own}ServiceRoleDefaultPolicy": "AWS::IAM::Policy"}
    for function in functions:
        made |= {function: "AWS::Lambda::Function", f"{function}Role": "AWS::IAM::Role", f"{function}Logs": "AWS::Logs::LogGroup"}
    return made


MIRRORED = ("Ray", "Busybox", "Operator", "K8sDevicePlugin", "AwsEfaK8sDevicePlugin", "NeuronDevicePlugin", "HyperpodHealthMonitoringAgent",
            "MpiOperator", "TrainingOperator")  # fmt: skip
# Choice -> the stack that it touches, the value, what it adds and what it takes away (logical id without CDK's hash -> type).
CHOICES: dict[str, tuple[type[EnvironmentStack], dict[str, object], dict[str, str], dict[str, str]]] = {
    "Karpenter": (HyperPod, {"hyperpod.autoscaling": "karpenter"}, {"ScalerRole": "AWS::IAM::Role"}, {}),
    "spot": (HyperPod, {"instance_groups.0.capacity": "spot"}, {}, {}),
    "training plan": (HyperPod, {"instance_groups.2.training_plan_arn": PLAN}, {}, {}),
    "export to S3": (Data, {"storage.file_system.export_to_s3": True}, {"RunsExport": "AWS::FSx::DataRepositoryAssociation"}, {}),
    "own keys": (Data, {"storage.encryption": "kms"}, {"Key": "AWS::KMS::Key", "PublishStorageKeyArn": "AWS::SSM::Parameter"}, {}),
    "Grafana by SAML": (Telemetry, {"observability.grafana": "saml"}, {}, {}),
    "no Grafana, no dashboards": (
        Observability,
        {"observability.grafana": "none"},
        {},
        {
            "GrafanaContent": "Custom::GrafanaContent",
            "GrafanaFunction": "AWS::Lambda::Function",
            "GrafanaFunctionRole": "AWS::IAM::Role",
            "GrafanaFunctionLogs": "AWS::Logs::LogGroup",
        },
    ),
    "no Grafana": (
        Telemetry,
        {"observability.grafana": "none"},
        {},
        {
            "Grafana": "AWS::Grafana::Workspace",
            "GrafanaRole": "AWS::IAM::Role",
            "PublishGrafanaWorkspaceId": "AWS::SSM::Parameter",
            "PublishGrafanaEndpoint": "AWS::SSM::Parameter",
            "PublishGrafanaWorkspaceName": "AWS::SSM::Parameter",
        },
    ),
    "closed network": (
        Cluster,
        {"network.egress": "closed", "access.endpoint": "private"},
        {
            "MirrorProject": "AWS::CodeBuild::Project",
            "MirrorBuildRole": "AWS::IAM::Role",
            "MirrorLogs": "AWS::Logs::LogGroup",
            "MirroredImages": "Custom::MirroredImages",
            "ChartKuberayOperator": "AWS::ECR::Repository",
            **{f"Image{name}": "AWS::ECR::Repository" for name in MIRRORED},
            **waits("MirrorProvider", "BeginMirror", "MirrorEnded"),
        },
        {},
    ),
    "removal backup": (
        Data,
        {"storage.removal": "backup"},
        {"FinalBackup": "Custom::FinalBackup", **waits("FinalBackupProvider", "BeginBackup", "BackupEnded")},
        {},
    ),
    "removal destroy": (
        Data,
        {"storage.removal": "destroy"},
        {
            "EmptiedArtifacts": "Custom::EmptiedBucket",
            "EmptyBucket": "AWS::Lambda::Function",
            "EmptyBucketRole": "AWS::IAM::Role",
            "EmptyBucketLogs": "AWS::Logs::LogGroup",
        },
        {},
    ),
}


@pytest.mark.parametrize("choice", CHOICES)
def test_a_choice_adds_and_takes_away_what_it_says(variant: Variant, resources: Callable[..., Resources], choice: str) -> None:
    stack, changes, added, gone = CHOICES[choice]
    plain, made = resources(stack, variant("reference", {})), resources(stack, variant("reference", changes))
    assert (by_type(made, plain), by_type(plain, made)) == (added, gone)
    assert made != plain, "it changes nothing at all"


def test_studio_is_a_stack_of_its_own(variant: Variant, resources: Callable[..., Resources]) -> None:
    made = resources(Studio, variant("reference", {"studio.enabled": True}))
    assert by_type(made, {}) == {
        "Domain": "AWS::SageMaker::Domain",
        "User": "AWS::SageMaker::UserProfile",
        "UserRole": "AWS::IAM::Role",
        "UserAccess": "AWS::EKS::AccessEntry",
    }, "where data is retained home directories are, too"
    passing = resources(Studio, variant("reference", {"studio.enabled": True, "storage.removal": "destroy"}))
    assert by_type(passing, made) == {
        "Home": "Custom::StudioHome",
        "HomeFunction": "AWS::Lambda::Function",
        "HomeFunctionRole": "AWS::IAM::Role",
        "HomeFunctionLogs": "AWS::Logs::LogGroup",
    }
    assert passing["Home"]["DependsOn"] == ["User"], "it goes before the profile and the domain"
    assert "eks:AccessKubernetesApi" in json.dumps(made)
    assert "SpacePolicy" not in json.dumps(made)
    spaces = resources(Studio, variant("reference", {"studio.enabled": True, "remote_access.domain": DOMAIN}))
    policies = {
        json.dumps(policy["PolicyArn"]).rpartition("/")[2].strip('"]} '): policy["AccessScope"].get("Namespaces")
        for policy in spaces["UserAccess"]["Properties"]["AccessPolicies"]  # type: ignore[index]
    }
    assert policies["AmazonSagemakerHyperpodSpacePolicy"] == ["training", "serving"]
    assert policies["AmazonSagemakerHyperpodSpaceTemplatePolicy"] == ["jupyter-k8s-system", "jupyter-k8s-shared"]


DOMAIN = {"name": "ray.example.com", "hosted_zone_id": "Z0123456789ABC"}


def test_a_domain_brings_spaces_and_all_that_its_web_ui_needs(variant: Variant, resources: Callable[..., Resources]) -> None:
    plain = resources(Platform, variant("reference", {}))
    named = resources(Platform, variant("reference", {"remote_access.domain": DOMAIN}))
    assert by_type(plain, named) == {}
    assert by_type(named, plain) == {
        "Certificate": "AWS::CertificateManager::Certificate",
        "SpacesKey": "AWS::KMS::Key",
        "EndpointKey": "AWS::KMS::Key",
        "EbsCsiDriver": "AWS::EKS::Addon",
        "ExternalDns": "AWS::EKS::Addon",
        "Spaces": "AWS::EKS::Addon",
        "EbsCsiRole": "AWS::IAM::Role",
        "ExternalDnsRole": "AWS::IAM::Role",
        "SpacesControllerRole": "AWS::IAM::Role",
        "SpacesRouterRole": "AWS::IAM::Role",
        "LoadBalancerRole": "AWS::IAM::Role",
        "LoadBalancerIdentity": "AWS::EKS::PodIdentityAssociation",
        "LoadBalancerController": "Custom::AWSCDK-EKS-HelmChart",
        "EndpointRole": "AWS::IAM::Role",
        "EndpointIdentity": "AWS::EKS::PodIdentityAssociation",
        "EndpointOperator": "Custom::AWSCDK-EKS-HelmChart",
    }
    certificate = named["Certificate"]["Properties"]
    assert certificate["SubjectAlternativeNames"] == ["*.ray.example.com"]  # type: ignore[index]
    assert certificate["DomainValidationOptions"] == [{"DomainName": "ray.example.com", "HostedZoneId": "Z0123456789ABC"}]  # type: ignore[index]
    assert {body["Properties"].get("KeySpec", "SYMMETRIC_DEFAULT") for body in named.values() if body["Type"] == "AWS::KMS::Key"} == {
        "SYMMETRIC_DEFAULT"
    }  # type: ignore[attr-defined]
    records = json.loads(named["ExternalDns"]["Properties"]["ConfigurationValues"])  # type: ignore[index]
    assert records == {"policy": "sync", "registry": "txt", "txtOwnerId": "hyperpod-rl-reference"}, "its own, as leaks looks for them"
    text = json.dumps(named["Spaces"]["Properties"]["ConfigurationValues"])  # type: ignore[index]
    assert "ray.example.com" in text
    assert "internet-facing" in text


def test_of_a_domain_everything_comes_in_the_order_that_it_needs(everything: Assembly) -> None:
    """Certificates before what serves with them, the balancer before the ingress, identities before their pods, the drain last."""
    order = graph(everything)

    def named(beginning: str) -> str:
        (found,) = [
            f"Platform/{name}"
            for name in everything.templates["Platform"]["Resources"]
            if re.fullmatch(beginning + "[0-9A-F]{8}|" + beginning, name)
        ]
        return found

    wanted = {
        "Spaces": (
            "CertManager",
            "LoadBalancerController",
            "EbsCsiDriver",
            "ExternalDns",
            "Certificate",
            "SpacesKey",
            "SpacesControllerRole",
        ),
        "LoadBalancerController": ("CertManager", "LoadBalancerIdentity"),
        "EndpointOperator": ("CertManager", "EndpointIdentity", "EndpointKey", "Spaces"),
        "Drain": ("Spaces", "EndpointOperator", "LoadBalancerController", "ExternalDns", "EndpointIdentity", "LoadBalancerIdentity"),
    }
    missing = {
        (later, earlier) for later, before in wanted.items() for earlier in before if named(earlier) not in order.before(named(later))
    }
    assert missing == set()


def test_where_nothing_is_public_the_web_ui_is_not_either(variant: Variant, resources: Callable[..., Resources]) -> None:
    made = resources(Platform, variant("reference", {"remote_access.domain": DOMAIN, "access.endpoint": "private"}))
    text = json.dumps(made["Spaces"]["Properties"]["ConfigurationValues"])  # type: ignore[index]
    assert "internet-facing" not in text
    assert "internal" in text


def test_an_internal_load_balancer_brings_its_controller_alone(variant: Variant, resources: Callable[..., Resources]) -> None:
    plain = resources(Platform, variant("reference", {}))
    made = resources(Platform, variant("reference", {"serving.authentication": "internal-load-balancer"}))
    assert set(by_type(made, plain)) == {"LoadBalancerRole", "LoadBalancerIdentity", "LoadBalancerController"}


def test_without_a_domain_the_endpoint_operator_can_still_be_there(variant: Variant, resources: Callable[..., Resources]) -> None:
    plain = resources(Platform, variant("reference", {}))
    named = resources(Platform, variant("reference", {"remote_access.endpoint_operator": True}))
    assert by_type(named, plain) == {"EndpointOperator": "Custom::AWSCDK-EKS-HelmChart"}


def test_task_governance_adds_its_add_on(variant: Variant, resources: Callable[..., Resources]) -> None:
    teams = {"ray_cluster.namespace": "hyperpod-ns-training", "serving.namespace": "hyperpod-ns-serving"}
    plain, governed = (
        resources(Platform, variant("reference", teams)),
        resources(Platform, variant("reference", {**teams, "hyperpod.task_governance": True})),
    )
    assert by_type(governed, plain) == {"TaskGovernance": "AWS::EKS::Addon"}


def test_a_closed_network_installs_every_chart_from_its_own_registry(variant: Variant, tmp_path: Path) -> None:
    settings = variant("production", {})
    made: Assembly = synthesize(settings, tmp_path / "out")
    repositories = {body["Properties"]["RepositoryName"] for body in made.resources("AWS::ECR::Repository", "Cluster").values()}
    for name, body in made.resources("Custom::AWSCDK-EKS-HelmChart").items():
        address = body["Properties"]["Repository"]
        assert address.startswith("oci://111122223333.dkr.ecr.us-west-2.amazonaws.com/"), name
        assert address.split("/", 3)[3] in repositories, f"{name}: nothing mirrors {address}"


def test_a_role_that_is_named_twice_has_each_policy_once(variant: Variant, resources: Callable[..., Resources]) -> None:
    """EKS takes one entry of a principal, and in it a policy once: with all the namespaces that it was named for."""
    role = "arn:aws:iam::111122223333:role/people/a+b=c,d.e@f"
    access = {
        "administrators": [role, role],
        "training_users": [{"role_arn": role, "namespaces": ["training"]}, {"role_arn": role, "namespaces": ["serving", "training"]}],
        "inference_users": [{"role_arn": role}],
    }
    made = resources(Cluster, variant("reference", {"access": access}))
    (entry,) = [body["Properties"] for body in made.values() if body["Type"] == "AWS::EKS::AccessEntry" and role in str(body)]
    policies = [
        (json.dumps(policy["PolicyArn"]).rpartition("/")[2].strip('"]} '), policy["AccessScope"])
        for policy in entry["AccessPolicies"]  # type: ignore[index]
    ]
    assert policies == [
        ("AmazonEKSClusterAdminPolicy", {"Type": "cluster"}),
        ("AmazonSagemakerHyperpodTrainingPolicy", {"Type": "namespace", "Namespaces": ["training", "serving"]}),
        ("AmazonSagemakerHyperpodUserClusterPolicy", {"Type": "cluster"}),
        ("AmazonSagemakerHyperpodInferencePolicy", {"Type": "namespace", "Namespaces": ["training", "serving"]}),
    ]
