"""Against botocore's own model of SageMaker: every request is checked by it before the stub answers."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import boto3
import pytest
from botocore.stub import ANY, Stubber

from config.load import load
from config.problems import Refused, Unreachable
from serving import registry
from serving.releases import BaseModelUsed, Release, Verdict

ENV = load("reference")
NAME, GROUP = "maze-grpo-s160-0a1b2c3d", "hyperpod-rl-reference-maze-grpo"
ARN = f"arn:aws:sagemaker:us-west-2:111122223333:model-package/{GROUP}/1"
WHERE = f"s3://bucket/lora-adapters/{NAME}/"
GROUPS = {
    "ModelPackageGroupSummaryList": [
        {"ModelPackageGroupName": GROUP, "ModelPackageGroupArn": f"{ARN}-group", "CreationTime": datetime(2026, 1, 1, tzinfo=UTC),
         "ModelPackageGroupStatus": "Completed"}
    ]
}  # fmt: skip


def release(*, passed: bool = True, **changes: Any) -> Release:
    made = Release(
        name=NAME, adapter="maze-grpo", step=160, run_id="maze-grpo-1", environment="reference", content_digest="sha256:" + "0" * 64,
        files=(), rank=32, alpha=32, base_model=BaseModelUsed(repository="VisGym/visgym_model", revision="a" * 40), image="uri",
        code_commit="b" * 40, record_sha256="c" * 64, published_by="ada", published_at="2026-11-29T10:00:00+00:00",
        gate=Verdict(passed=passed, at="", candidate_rate=51 / 64, fresh_rate=0.6875),
    )  # fmt: skip
    return made.model_copy(update=changes)


@pytest.fixture
def client() -> Any:
    return boto3.client(
        "sagemaker", region_name="us-west-2", aws_access_key_id="x", aws_secret_access_key="y", endpoint_url="http://127.0.0.1:9"
    )


@pytest.mark.parametrize(("passed", "status"), [(True, "Approved"), (False, "PendingManualApproval")])
def test_a_new_release_becomes_a_model_package_with_its_lineage(client: Any, passed: bool, status: str) -> None:
    made = release(passed=passed, override=None if passed else "to try; the endpoint!")
    properties = registry.lineage(made, WHERE)
    assert properties["solve_rate"] == "0.7969"
    assert properties["location"] == WHERE
    assert ("override" in properties) is not passed
    if not passed:
        assert properties["override"] == "to try_ the endpoint_"
    with Stubber(client) as stub:
        stub.add_response("list_model_package_groups", {"ModelPackageGroupSummaryList": []}, {"NameContains": GROUP})
        group = {"ModelPackageGroupName": GROUP, "ModelPackageGroupDescription": ANY}
        stub.add_response("create_model_package_group", {"ModelPackageGroupArn": "arn:aws:x"}, group)
        stub.add_response(
            "create_model_package",
            {"ModelPackageArn": ARN},
            {
                "ModelPackageGroupName": GROUP, "ModelPackageDescription": NAME, "ModelApprovalStatus": status, "ClientToken": ANY,
                "InferenceSpecification": ANY, "MetadataProperties": ANY, "CustomerMetadataProperties": properties,
            },
        )  # fmt: skip
        assert registry.register(ENV, made, location=WHERE, client=client) == (ARN, True)
        stub.assert_no_pending_responses()


def test_two_who_register_it_at_once_make_one_package(client: Any) -> None:
    tokens = []
    client.meta.events.register(
        "provide-client-params.sagemaker.CreateModelPackage", lambda params, **_: tokens.append(params["ClientToken"])
    )
    for said in ("Model Package Group already exists: arn:aws:x", "The account has too many of them"):
        with Stubber(client) as stub:
            stub.add_response("list_model_package_groups", {"ModelPackageGroupSummaryList": []})
            stub.add_client_error("create_model_package_group", "ValidationException", said)
            stub.add_response("create_model_package", {"ModelPackageArn": ARN})
            if "exists" in said:
                assert registry.register(ENV, release(), location=WHERE, client=client) == (ARN, True)
            else:
                with pytest.raises(Unreachable, match="too many"):
                    registry.register(ENV, release(), location=WHERE, client=client)
    with Stubber(client) as stub:
        stub.add_response("list_model_package_groups", {"ModelPackageGroupSummaryList": []})
        stub.add_response("create_model_package_group", {"ModelPackageGroupArn": "arn:aws:x"})
        stub.add_response("create_model_package", {"ModelPackageArn": ARN})
        registry.register(ENV, release(published_by="bob"), location=WHERE, client=client)
    assert len(tokens) == 2
    assert len(set(tokens)) == 1, "SageMaker takes the second for a repetition of the first"


def test_a_registered_release_is_not_registered_again(client: Any) -> None:
    summary = {
        "ModelPackageArn": ARN, "ModelPackageDescription": NAME, "CreationTime": datetime(2026, 1, 1, tzinfo=UTC),
        "ModelPackageStatus": "Completed",
    }  # fmt: skip
    with Stubber(client) as stub:
        stub.add_response("list_model_package_groups", GROUPS, {"NameContains": GROUP})
        stub.add_response("list_model_packages", {"ModelPackageSummaryList": [summary]}, {"ModelPackageGroupName": GROUP})
        assert registry.register(ENV, release(), location=WHERE, client=client) == (ARN, False)


def test_what_sagemaker_refuses_is_one_sentence(client: Any) -> None:
    with Stubber(client) as stub:
        stub.add_client_error("list_model_package_groups", "AccessDeniedException", "not allowed")
        with pytest.raises(Unreachable, match="Model Registry refused ListModelPackageGroups: AccessDeniedException"):
            registry.register(ENV, release(), location=WHERE, client=client)


def test_the_local_cloud_has_no_registry() -> None:
    with pytest.raises(Refused, match="no Model Registry"):
        registry.register(load("local"), release(), location=WHERE)


def test_long_and_strange_texts_are_cut_to_what_sagemaker_takes() -> None:
    properties = registry.lineage(release(override="ä" * 300 + "\n"), WHERE)
    assert len(properties["override"]) == 256
    assert len(properties) <= 50
