"""Labels, taints, tags and training plans that AWS or Kubernetes would refuse are refused here."""

from __future__ import annotations

import pytest

from config.problems import Refused
from tests.stacks.conftest import changed

PLAN = "arn:aws:sagemaker:{}:{}:training-plan/mine"
HERE = "111122223333"


@pytest.mark.parametrize(
    ("changes", "field", "says"),
    [
        ({"instance_groups.0.labels": {"a b": "rl"}}, "instance_groups[0].labels.a b", "the key has letters"),
        ({"instance_groups.0.labels": {"Example.com/team": "rl"}}, "instance_groups[0].labels.Example.com/team", "the key has"),
        ({"instance_groups.0.labels": {"team": "x" * 64}}, "instance_groups[0].labels.team", "at most 63"),
        ({"instance_groups.0.taints": [{"key": ""}]}, "instance_groups[0].taints[0]", "the key has letters"),
        ({"instance_groups.0.taints": [{"key": "mine", "value": "-"}]}, "instance_groups[0].taints[0]", "the value has letters"),
        ({"instance_groups.0.labels": {f"l{number}": "" for number in range(51)}}, "instance_groups[0].labels", "keep 50"),
        ({"instance_groups.0.taints": [{"key": f"t{number}"} for number in range(51)]}, "instance_groups[0].taints", "keep 50"),
        (
            {"instance_groups.0.taints": [{"key": "a", "value": "x"}, {"key": "a"}]},
            "instance_groups[0].taints = a:NoSchedule",
            "name it once",
        ),
        ({"instance_groups.2.deep_health_checks": ["InstanceStress"] * 2}, "instance_groups[2].deep_health_checks", "name it once"),
        ({"instance_groups.2.training_plan_arn": PLAN.format("us-east-1", HERE)}, "instance_groups[2].training_plan_arn", "in us-east-1"),
        (
            {"account": "123456789012", "instance_groups.2.training_plan_arn": PLAN.format("us-west-2", HERE)},
            "instance_groups[2].training_plan_arn",
            f"belongs to account {HERE}",
        ),
        ({"tags": {"aws:owner": "me"}}, "tags.aws:owner", "AWS's own"),
        ({"tags": {"hyperpod-rl-environment": "other"}}, "tags.hyperpod-rl-environment", "are found"),
        ({"tags": {"owner": "me; you"}}, "tags.owner", "leave other characters out"),
        ({"tags": {f"t{number}": "" for number in range(41)}}, "tags", "keep 40"),
    ],
)
def test_what_aws_would_refuse_is_one_sentence(changes: dict[str, object], field: str, says: str) -> None:
    with pytest.raises(Refused) as refused:
        changed("reference", changes)
    lines = [str(problem) for problem in refused.value.problems]
    assert any(line.startswith(field) and says in line for line in lines), lines


@pytest.mark.parametrize(
    "changes",
    [
        {"instance_groups.0.labels": {"example.com/team": "rl", "A.b_c-9": "", "x" * 63: "y" * 63}},
        {"instance_groups.0.taints": [{"key": "dedicated", "value": "rl"}, {"key": "example.com/dedicated"}]},
        {"instance_groups.0.taints": [{"key": "dedicated"}, {"key": "dedicated", "effect": "NoExecute"}]},
        {"account": "123456789012", "instance_groups.2.training_plan_arn": PLAN.format("us-west-2", "123456789012")},
        {"tags": {"cost center": "rl/42 + é", "owner": "me@example.com"}},
    ],
)
def test_what_it_takes_passes(changes: dict[str, object]) -> None:
    changed("reference", changes)
