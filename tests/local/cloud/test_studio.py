"""A Studio domain goes whole, with what would keep its VPC; while somebody works in it, nothing goes."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from stacks.handlers import studio_home
from tests.local.cloud.conftest import Account, get, ref, resource

pytestmark = pytest.mark.cloud


@pytest.fixture
def domain(account: Account, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    settings = {"ExecutionRole": "arn:aws:iam::000000000000:role/studio"}
    account.deploy(
        "studio",
        {
            "Vpc": resource("AWS::EC2::VPC", CidrBlock="10.0.0.0/16"),
            "Subnet": resource("AWS::EC2::Subnet", VpcId=ref("Vpc"), CidrBlock="10.0.0.0/24"),
            "Domain": resource(
                "AWS::SageMaker::Domain", AuthMode="IAM", DomainName="studio", VpcId=ref("Vpc"), SubnetIds=[ref("Subnet")],
                DefaultUserSettings=settings,
            ),
            "User": resource("AWS::SageMaker::UserProfile", DomainId=get("Domain", "DomainId"), UserProfileName="researcher"),
        },
    )  # fmt: skip
    monkeypatch.setattr(studio_home.boto3, "client", account.client)
    (found,) = account.client("sagemaker").list_domains()["Domains"]
    yield found["DomainId"]
    account.destroy("studio")


def event(domain: str, request: str = "Delete") -> dict[str, Any]:
    return {"RequestType": request, "ResourceProperties": {"DomainId": domain}}


def test_profiles_domain_and_groups_go_and_a_second_time_is_fine(account: Account, domain: str) -> None:
    ec2, sagemaker = account.client("ec2"), account.client("sagemaker")
    (vpc,) = [v["VpcId"] for v in ec2.describe_vpcs(Filters=[{"Name": "cidr", "Values": ["10.0.0.0/16"]}])["Vpcs"]]
    names = [name.format(domain) for name in studio_home.GROUPS]
    inbound, outbound = (ec2.create_security_group(GroupName=name, Description="NFS", VpcId=vpc)["GroupId"] for name in names)
    nfs = {"IpProtocol": "tcp", "FromPort": 2049, "ToPort": 2049, "UserIdGroupPairs": [{"GroupId": outbound}]}
    ec2.authorize_security_group_ingress(GroupId=inbound, IpPermissions=[nfs])
    assert studio_home.work(event(domain, "Create")) == (f"studio-home/{domain}", {})
    assert len(sagemaker.list_user_profiles(DomainIdEquals=domain)["UserProfiles"]) == 1
    for _ in range(2):
        studio_home.work(event(domain))
        assert sagemaker.list_domains()["Domains"] == []
        assert sagemaker.list_user_profiles()["UserProfiles"] == []
        assert not {group["GroupName"] for group in ec2.describe_security_groups()["SecurityGroups"]} & set(names)


def test_a_running_app_is_named_and_nothing_goes(account: Account, domain: str, monkeypatch: pytest.MonkeyPatch) -> None:
    app = {"AppType": "JupyterLab", "AppName": "default", "Status": "InService", "SpaceName": "maze"}
    ended = {"AppType": "JupyterLab", "AppName": "old", "Status": "Deleted", "UserProfileName": "researcher"}
    pages = studio_home._pages

    def listed(client: Any, operation: str, items: str, of: str) -> Iterator[Any]:
        yield from ([app, ended] if operation == "list_apps" else pages(client, operation, items, of))

    monkeypatch.setattr(studio_home, "_pages", listed)
    with pytest.raises(RuntimeError, match=r"nothing was deleted: Studio runs JupyterLab default of maze\. Stop it in Studio"):
        studio_home.work(event(domain))
    assert len(account.client("sagemaker").list_user_profiles(DomainIdEquals=domain)["UserProfiles"]) == 1


def test_what_does_not_go_in_time_is_named(domain: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(studio_home, "PATIENCE_SECONDS", -1)
    monkeypatch.setattr(studio_home, "with_gone", lambda *_, **__: {"Status": "Deleting"})
    with pytest.raises(RuntimeError, match="researcher; destroy again"):
        studio_home.work(event(domain))
