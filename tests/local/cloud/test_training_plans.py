"""Training plans are bought, told about, and give their nodes and no more."""

from __future__ import annotations

import pytest

from tests.local.cloud.conftest import Account, Refused, group, hyperpod
from tests.local.cloud.test_services import _unknown_members

pytestmark = pytest.mark.cloud


def test_a_plan_that_was_bought_gives_its_nodes_and_no_more(account: Account) -> None:
    sagemaker = account.client("sagemaker")
    (offering,) = sagemaker.search_training_plan_offerings(
        InstanceType="ml.p5.48xlarge", InstanceCount=2, DurationHours=48, TargetResources=["hyperpod-cluster"]
    )["TrainingPlanOfferings"]
    arn = sagemaker.create_training_plan(TrainingPlanName="bought", TrainingPlanOfferingId=offering["TrainingPlanOfferingId"])[
        "TrainingPlanArn"
    ]
    described = sagemaker.describe_training_plan(TrainingPlanName="bought")
    assert _unknown_members(account, "sagemaker", "DescribeTrainingPlan", described) == []
    assert (described["TrainingPlanArn"], described["Status"], described["AvailableInstanceCount"]) == (arn, "Active", 2)
    assert [plan["TrainingPlanName"] for plan in sagemaker.list_training_plans()["TrainingPlanSummaries"]] == ["bought"]
    with pytest.raises(sagemaker.exceptions.ResourceInUse):
        sagemaker.create_training_plan(TrainingPlanName="bought", TrainingPlanOfferingId=offering["TrainingPlanOfferingId"])
    with pytest.raises(Refused, match=r"is for ml\.p5\.48xlarge, not for ml\.p5en"):
        account.deploy("other", hyperpod(group("w", "ml.p5en.48xlarge", TrainingPlanArn=arn)))
    account.destroy("other")
    account.deploy("planned", hyperpod(group("w", "ml.p5.48xlarge", 2, TrainingPlanArn=arn)))
    used = sagemaker.describe_training_plan(TrainingPlanName="bought")
    assert (used["InUseInstanceCount"], used["AvailableInstanceCount"]) == (2, 0)
    with pytest.raises(Refused, match="has 2 instances, and 3 are asked for"):
        account.deploy("planned", hyperpod(group("w", "ml.p5.48xlarge", 3, TrainingPlanArn=arn)))


def test_a_plan_of_nobody_is_unknown(account: Account) -> None:
    sagemaker = account.client("sagemaker")
    with pytest.raises(sagemaker.exceptions.ResourceNotFound, match="nobodys does not exist"):
        sagemaker.describe_training_plan(TrainingPlanName="nobodys")
