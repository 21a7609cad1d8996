"""A delete that fails keeps what the resource that stayed needs, and goes on when it is run again."""

from __future__ import annotations

import pytest

from local import lifecycle
from tests.local.cloud.conftest import Account, ref, resource

pytestmark = pytest.mark.cloud


def test_what_a_resource_needs_stays_with_it(account: Account) -> None:
    account.deploy("guarded", {
        "Vpc": resource("AWS::EC2::VPC", CidrBlock="10.6.0.0/16"),
        "Subnet": resource("AWS::EC2::Subnet", VpcId=ref("Vpc"), CidrBlock="10.6.0.0/24"),
        "Guard": resource("AWS::SSM::Parameter", ["Subnet"], Type="String", Value="v"),
        "Other": resource("AWS::SNS::Topic"),
    })  # fmt: skip
    lifecycle.set_faults([{"resource": "Guard", "action": "delete", "fail": "a job runs"}])
    assert account.destroy("guarded") == "DELETE_FAILED"
    left = lifecycle.inventory()
    assert ("Subnet" in left, "VPC" in left, "SNS topic" in left) == (True, True, False)
    events = account.client("cloudformation").describe_stack_events(StackName="guarded")["StackEvents"]
    said = {e["LogicalResourceId"]: e.get("ResourceStatusReason", "") for e in events if e["ResourceStatus"] == "DELETE_FAILED"}
    assert "a job runs" in said["Guard"]
    assert said["Subnet"] == "kept, since Guard was not deleted"
    lifecycle.set_faults([])
    assert account.destroy("guarded") == "DELETE_COMPLETE"
    assert "VPC" not in lifecycle.inventory()
