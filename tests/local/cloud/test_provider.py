"""Resources of types that ministack lacks: created, changed, replaced and deleted through CloudFormation."""

from __future__ import annotations

import pytest

from tests.local.cloud.conftest import Account, Refused, eks, get, lustre, ref, resource

pytestmark = pytest.mark.cloud


def test_ref_and_attributes_have_awss_shapes(account: Account) -> None:
    amp = resource("AWS::APS::Workspace", Alias="a")
    outputs = {"Id": get("Amp", "WorkspaceId"), "Url": get("Amp", "PrometheusEndpoint"), "Arn": ref("Amp")}
    made = account.deploy("shapes", {"Amp": amp}, outputs)
    assert made["Arn"] == f"arn:aws:aps:us-west-2:000000000000:workspace/{made['Id']}"
    assert made["Url"] == f"https://aps-workspaces.us-west-2.amazonaws.com/workspaces/{made['Id']}/"
    listed = account.client("amp").list_workspaces()["workspaces"]
    assert [w["arn"] for w in listed] == [made["Arn"]]


def test_any_other_type_of_the_registry_works_too(account: Account) -> None:
    query = resource("AWS::Athena::NamedQuery", Database="d", QueryString="select 1")
    made = account.deploy("any", {"Query": query}, {"Id": ref("Query")})
    assert made["Id"].startswith("namedquery-")


def test_an_unknown_type_is_refused_before_anything_is_made(account: Account) -> None:
    with pytest.raises(account.client("cloudformation").exceptions.ClientError, match="Unrecognized resource types"):
        account.client("cloudformation").create_stack(StackName="none", TemplateBody='{"Resources":{"A":{"Type":"AWS::No::Such"}}}')


def test_a_change_in_place_keeps_the_resource(account: Account) -> None:
    first = account.deploy("grow", lustre(), {"Id": ref("FileSystem")})
    second = account.deploy("grow", lustre(StorageCapacity=2400), {"Id": ref("FileSystem")})
    assert first == second
    systems = account.client("fsx").describe_file_systems()["FileSystems"]
    assert [(s["FileSystemId"], s["StorageCapacity"]) for s in systems] == [(first["Id"], 2400)]


def test_a_create_only_change_replaces_the_resource(account: Account) -> None:
    first = account.deploy("swap", lustre(), {"Id": ref("FileSystem")})
    second = account.deploy("swap", lustre(SubnetIds=[ref("SubnetB")]), {"Id": ref("FileSystem")})
    assert first["Id"] != second["Id"]
    systems = account.client("fsx").describe_file_systems()["FileSystems"]
    assert [s["FileSystemId"] for s in systems] == [second["Id"]]


def test_replacing_a_resource_with_an_explicit_name_is_refused(account: Account) -> None:
    domain = {
        "DomainName": "studio",
        "AuthMode": "IAM",
        "DefaultUserSettings": {"ExecutionRole": "arn:aws:iam::000000000000:role/r"},
    }
    account.deploy("named", {"Domain": resource("AWS::SageMaker::Domain", **domain)})
    with pytest.raises(Refused, match="already exists"):
        account.deploy("named", {"Domain": resource("AWS::SageMaker::Domain", **{**domain, "AuthMode": "SSO"})})
    assert [d["DomainName"] for d in account.client("sagemaker").list_domains()["Domains"]] == ["studio"]


def test_a_second_resource_with_the_same_name_is_refused(account: Account) -> None:
    addon = {"ClusterName": ref("Eks"), "AddonName": "coredns"}
    twice = {"A": resource("AWS::EKS::Addon", **addon), "B": resource("AWS::EKS::Addon", **addon)}
    with pytest.raises(Refused, match="already exists"):
        account.deploy("twice", {**eks(), **twice})
    assert account.client("eks").list_clusters()["clusters"] == []


def test_wrong_properties_fail_the_stack_with_every_reason(account: Account) -> None:
    with pytest.raises(Refused) as failure:
        account.deploy("wrong", lustre(Colour="red", StorageCapacity="much"))
    assert "extraneous key [Colour]" in failure.value.reasons
    assert "#/StorageCapacity: expected type: Integer" in failure.value.reasons
    assert "Properties validation failed for resource FileSystem" in failure.value.reasons


def test_types_that_ministack_has_are_judged_too(account: Account) -> None:
    with pytest.raises(Refused, match=r"extraneous key \[BucketNme\]"):
        account.deploy("misspelt", {"Bucket": resource("AWS::S3::Bucket", BucketNme="b")})


def test_deleting_what_is_gone_already_is_no_error(account: Account) -> None:
    account.deploy("gone", {"Address": resource("AWS::EC2::EIP", Domain="vpc")}, {"Id": get("Address", "AllocationId")})
    ec2 = account.client("ec2")
    for address in ec2.describe_addresses()["Addresses"]:
        ec2.release_address(AllocationId=address["AllocationId"])
    assert account.destroy("gone") == "DELETE_COMPLETE"


def test_rules_of_security_groups_reach_the_group(account: Account) -> None:
    rules = {
        "In": resource(
            "AWS::EC2::SecurityGroupIngress", GroupId=ref("Group"), IpProtocol="tcp", FromPort=988, ToPort=988, CidrIp="10.0.0.0/8"
        ),
        "Out": resource("AWS::EC2::SecurityGroupEgress", GroupId=ref("Group"), IpProtocol="-1", DestinationSecurityGroupId=ref("Group")),
    }
    made = account.deploy("rules", {**lustre(), **rules}, {"Group": ref("Group")})
    found = account.client("ec2").describe_security_groups(GroupIds=[made["Group"]])["SecurityGroups"][0]
    assert [(p["FromPort"], p["IpRanges"][0]["CidrIp"]) for p in found["IpPermissions"]] == [(988, "10.0.0.0/8")]
    assert made["Group"] in {pair["GroupId"] for p in found["IpPermissionsEgress"] for pair in p.get("UserIdGroupPairs", [])}


def test_a_change_set_announces_a_replacement(account: Account) -> None:
    import json

    account.deploy("announce", lustre())
    cloudformation = account.client("cloudformation")
    for capacity, subnet, expected in ((2400, "SubnetA", {"False", "Conditional"}), (1200, "SubnetB", {"True"})):
        body = json.dumps({"Resources": lustre(StorageCapacity=capacity, SubnetIds=[ref(subnet)])})
        cloudformation.create_change_set(StackName="announce", ChangeSetName=f"c{capacity}", TemplateBody=body)
        changes = cloudformation.describe_change_set(StackName="announce", ChangeSetName=f"c{capacity}")["Changes"]
        assert {c["ResourceChange"]["Replacement"] for c in changes} <= expected
        assert [c["ResourceChange"]["LogicalResourceId"] for c in changes] == ["FileSystem"]


def test_two_associations_may_share_their_cluster(account: Account) -> None:
    both = {
        name: resource(
            "AWS::EKS::PodIdentityAssociation", ClusterName=ref("Eks"), Namespace=name, ServiceAccount="s", RoleArn=get("EksRole", "Arn")
        )
        for name in ("a", "b")
    }
    account.deploy("two", {**eks(), **{name.upper(): value for name, value in both.items()}})
    found = account.client("eks").list_pod_identity_associations(clusterName="tests")["associations"]
    assert {a["namespace"] for a in found} == {"a", "b"}


def test_an_eks_cluster_brings_its_kubernetes_and_takes_it_along(account: Account) -> None:
    outputs = {"Url": get("Eks", "Endpoint"), "Authority": get("Eks", "CertificateAuthorityData")}
    made = account.deploy("eks", eks(), outputs)
    described = account.client("eks").describe_cluster(name="tests")["cluster"]
    assert described["endpoint"] == made["Url"]
    assert described["certificateAuthority"]["data"] == made["Authority"]
    import base64
    import ssl
    import urllib.error
    import urllib.request

    trusted = ssl.create_default_context(cadata=base64.b64decode(made["Authority"]).decode())
    with urllib.request.urlopen(f"{made['Url']}/version", context=trusted, timeout=120) as answer:
        assert b"1.34" in answer.read()
    assert account.destroy("eks") == "DELETE_COMPLETE"
    with pytest.raises(urllib.error.HTTPError, match="404"):
        urllib.request.urlopen(f"{made['Url']}/version", context=trusted, timeout=120)


def test_an_eks_cluster_that_failed_halfway_leaves_nothing(account: Account) -> None:
    from local import lifecycle

    before = lifecycle.inventory()
    template = eks()
    template["Eks"]["Properties"]["ResourcesVpcConfig"]["SecurityGroupIds"] = ["sg-0123456789abcdef0"]
    with pytest.raises(Refused, match="security group"):
        account.deploy("half", template)
    account.destroy("half")
    assert lifecycle.inventory() == before
