"""How operations ask AWS: every page of a list, and a sentence for whatever is refused."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

import boto3
import pytest

from config.load import ROOT
from operations.aws import Aws, Unanswered
from tests.operations.conftest import Variant
from tests.operations.stubs import Says, Stubs

SOURCES = "\n".join(path.read_text(encoding="utf-8") for path in (ROOT / "operations").rglob("*.py"))
LISTS = sorted(set(re.findall(r'pages\(\s*"([a-z0-9-]+)",\s*"([a-z_0-9]+)",\s*"(\w+)"', SOURCES)))
SESSION = boto3.Session("a", "b", region_name="us-west-2")


@pytest.mark.parametrize(("service", "operation", "key"), LISTS)
def test_every_list_is_read_to_its_end(service: str, operation: str, key: str) -> None:
    """By botocore's paginator, or it has one page only; and its members are where they are looked for."""
    client = SESSION.client(service)
    shape = client.meta.service_model.operation_model(client.meta.method_to_api_mapping[operation]).output_shape
    assert key in shape.members
    assert client.can_paginate(operation) or not [name for name in shape.members if re.search(r"(?i)token|marker", name)]


def test_there_are_many_of_them() -> None:
    assert len(LISTS) > 40


def test_the_members_of_all_pages_come_one_after_another(variant: Variant) -> None:
    def page(given: Mapping[str, Any]) -> Mapping[str, Any]:
        at = int(given.get("NextToken", 0))
        names = [{"StackName": f"s{at}", "StackStatus": "CREATE_COMPLETE"}]
        return {"StackSummaries": names, **({"NextToken": str(at + 1)} if at < 3 else {})}

    stubs = Stubs({"cloudformation:list_stacks": page})
    found = Aws(variant(), stubs.session()).pages("cloudformation", "list_stacks", "StackSummaries")
    assert [item["StackName"] for item in found] == ["s0", "s1", "s2", "s3"]


@pytest.mark.parametrize(
    ("code", "sentence"),
    [
        ("AccessDenied", "AWS cannot be asked: ec2:describe_vpcs: AccessDenied, It is so; use a role that may call ec2:describe_vpcs"),
        ("ExpiredToken", "AWS cannot be asked: It is so; sign in again (aws sso login, or new keys in the shell)"),
        ("Throttling", "AWS cannot be asked: ec2:describe_vpcs: Throttling, It is so; AWS wants fewer calls: run it again in a minute"),
        ("ValidationError", "AWS cannot be asked: ec2:describe_vpcs: ValidationError, It is so"),
    ],
)
def test_a_refusal_is_one_sentence(variant: Variant, monkeypatch: pytest.MonkeyPatch, code: str, sentence: str) -> None:
    monkeypatch.setattr("botocore.endpoint.time.sleep", lambda _: None)  # before what is throttled is asked again
    aws = Aws(variant(), Stubs({"ec2:describe_vpcs": Says(code, "It is so.")}).session())
    with pytest.raises(Unanswered) as refused:
        list(aws.pages("ec2", "describe_vpcs", "Vpcs"))
    assert refused.value.sentence == sentence
