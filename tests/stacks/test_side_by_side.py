"""Two environments in one account and region: neither names a thing that the other makes."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest

from tests.stacks.assembly import Assembly, synthesize, texts
from tests.stacks.conftest import EVERYTHING, changed

# Properties that give a resource its physical name (the types' own `Name` and `Alias` too).
NAMING = re.compile(r"^(Name|Alias|[A-Za-z]*Name)$")
# These name something that somebody else made: a metric, a port, an AWS service, a policy inside a role, an add-on of AWS's.
ELSEWHERE = {"MetricName", "ServiceName", "PolicyName", "AddonName", "AlarmName", "GroupName", "UserProfileName"}
NAMES = ("mine", "mine-b")


@pytest.fixture(scope="module")
def both(tmp_path_factory: pytest.TempPathFactory) -> tuple[Assembly, Assembly]:
    import yaml

    from config import load

    text = (load.ENVIRONMENTS / "production.yaml").read_text()
    made = [load.parse(yaml.safe_dump({**yaml.safe_load(text), "name": name})) for name in NAMES]
    first, second = (synthesize(env, tmp_path_factory.mktemp(env.name)) for env in made)
    return first, second


def _physical(assembly: Assembly) -> dict[str, str]:
    """`type name` -> where, for every name that is written out."""
    found = {}
    for stack, template in assembly.templates.items():
        for logical, body in template["Resources"].items():
            for key, value in body.get("Properties", {}).items():
                if NAMING.match(key) and key not in ELSEWHERE and isinstance(value, str) and not _a_reference(body["Type"], key):
                    found[f"{body['Type']} {value}"] = f"{stack}/{logical}"
    return found


def _a_reference(kind: str, key: str) -> bool:
    """`ClusterName` of an add-on, say: the name of what it belongs to."""
    return (key == "ClusterName" and kind != "AWS::SageMaker::Cluster") or key in ("EksClusterName", "DomainId")


def test_no_physical_name_is_shared(both: tuple[Assembly, Assembly]) -> None:
    first, second = (_physical(assembly) for assembly in both)
    assert len(first) > 15
    assert set(first) & set(second) == set()


def test_names_that_services_share_across_an_account_differ(both: tuple[Assembly, Assembly]) -> None:
    for kind, key in (
        ("AWS::EKS::Cluster", "Name"), ("AWS::SageMaker::Cluster", "ClusterName"), ("AWS::Grafana::Workspace", "Name"),
        ("AWS::APS::Workspace", "Alias"), ("AWS::ECR::Repository", "RepositoryName"), ("AWS::S3::Bucket", "BucketName"),
    ):  # fmt: skip
        names = [{body["Properties"][key] for body in assembly.resources(kind).values()} for assembly in both]
        assert names[0], kind
        assert not names[0] & names[1], kind


def test_no_template_names_the_other_environment(both: tuple[Assembly, Assembly]) -> None:
    for own, assembly in zip(NAMES, both, strict=True):
        others = [name for name in NAMES if name != own]
        for stack, template in assembly.templates.items():
            for text in texts(template):
                for other in others:
                    assert not re.search(rf"hyperpod-rl[-/]{other}(?![-a-z0-9])", text), f"{own}'s {stack} names {text}"


def test_parameters_are_read_and_written_below_the_environments_own_path_alone(both: tuple[Assembly, Assembly]) -> None:
    for own, assembly in zip(NAMES, both, strict=True):
        for template in assembly.templates.values():
            read = [p["Default"] for p in template.get("Parameters", {}).values() if p["Type"].startswith("AWS::SSM")]
            made = [body["Properties"] for body in template["Resources"].values() if body["Type"] == "AWS::SSM::Parameter"]
            # CDK's own marker of a ready kubectl has no name of its own.
            written = [properties["Name"] for properties in made if "Name" in properties]
            ours = [name for name in (*read, *written) if not name.startswith("/cdk-bootstrap/")]
            assert all(name.startswith(f"/hyperpod-rl/{own}/") for name in ours)


def _allowed(assembly: Assembly) -> list[str]:
    """Resources that roles may act on."""
    found: list[str] = []
    for body in assembly.resources("AWS::IAM::Role").values():
        for policy in body["Properties"].get("Policies", []):
            for statement in policy["PolicyDocument"]["Statement"]:
                resources: Any = statement.get("Resource", [])
                found += [json.dumps(item) for item in (resources if isinstance(resources, list) else [resources])]
    return found


def test_no_role_reaches_the_other_environments_bucket_or_cluster(both: tuple[Assembly, Assembly]) -> None:
    shorter = [text for text in _allowed(both[0]) if re.search(r"hyperpod-rl-mine(\*|-\*)", text)]
    assert shorter == [], "`hyperpod-rl-mine*` would be `hyperpod-rl-mine-b` too"
    assert any("hyperpod-rl-mine" in text for text in _allowed(both[0]))


def test_every_stack_is_tagged_with_whose_it_is(both: tuple[Assembly, Assembly]) -> None:
    for own, assembly in zip(NAMES, both, strict=True):
        artifacts = json.loads((assembly.folder / "manifest.json").read_text())["artifacts"]
        for name in assembly.templates:
            assert artifacts[name]["properties"]["tags"]["hyperpod-rl-environment"] == own, name


# Services without a region of their own, or with one space of names for all: (type, property).
GLOBAL = (("AWS::IAM::Role", "RoleName"), ("AWS::S3::Bucket", "BucketName"), ("AWS::Budgets::Budget", "Budget"))


def test_the_same_environment_in_another_region_shares_nothing_that_has_no_region(
    everything: Assembly, tmp_path_factory: pytest.TempPathFactory
) -> None:
    elsewhere = {"region": "eu-central-1", "network.availability_zone_ids": ["euc1-az1", "euc1-az2"]}
    other = synthesize(changed("reference", {**EVERYTHING, **elsewhere}), tmp_path_factory.mktemp("elsewhere"))
    for kind, key in GLOBAL:
        first, second = (
            {str(body["Properties"][key]) for body in made.resources(kind).values() if key in body["Properties"]}
            for made in (everything, other)
        )
        assert len(first) == len(second) >= 1, kind
        assert not first & second, kind
    assert other.one("AWS::Budgets::Budget")["Budget"]["CostFilters"]["Region"] == ["eu-central-1"]
