"""Drift and change sets, as CloudFormation's API answers: read, and nothing left behind."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest
from botocore.exceptions import ClientError

from config.problems import Failed
from operations.review import live, show
from operations.review.compare import Review
from operations.review.sides import Side, StackTemplate


class NoChangeSet(ClientError):
    def __init__(self) -> None:
        super().__init__({"Error": {"Code": "ChangeSetNotFound", "Message": "no"}}, "DescribeChangeSet")


class CloudFormation:
    """One account: which stacks are there, what of them drifted, what their change sets hold."""

    class exceptions:
        ChangeSetNotFoundException = NoChangeSet

    def __init__(
        self, *, statuses: dict[str, str], templates: dict[str, Any] | None = None, drifted: Sequence[dict[str, Any]] = ()
    ) -> None:
        self.statuses, self.templates, self.drifted = statuses, templates or {}, list(drifted)
        self.change_sets: dict[str, list[dict[str, Any]]] = {}
        self.checking = 2

    def describe_stacks(self, *, StackName: str) -> dict[str, Any]:
        if StackName not in self.statuses:
            raise ClientError(
                {"Error": {"Code": "ValidationError", "Message": f"Stack with id {StackName} does not exist"}}, "DescribeStacks"
            )
        return {"Stacks": [{"StackStatus": self.statuses[StackName]}]}

    def get_template(self, *, StackName: str, TemplateStage: str) -> dict[str, Any]:
        return {"TemplateBody": self.templates.get(StackName, {"Resources": {}})}

    def detect_stack_drift(self, *, StackName: str) -> dict[str, Any]:
        return {"StackDriftDetectionId": StackName}

    def describe_stack_drift_detection_status(self, *, StackDriftDetectionId: str) -> dict[str, Any]:
        self.checking -= 1
        if self.checking > 0:
            return {"DetectionStatus": "DETECTION_IN_PROGRESS"}
        return {"DetectionStatus": "DETECTION_COMPLETE", "StackDriftStatus": "DRIFTED" if self.drifted else "IN_SYNC"}

    def describe_stack_resource_drifts(
        self, *, StackName: str, StackResourceDriftStatusFilters: list[str], NextToken: str = ""
    ) -> dict[str, Any]:
        first = not NextToken and len(self.drifted) > 1
        return {
            "StackResourceDrifts": self.drifted[:1] if first else self.drifted[1:] if NextToken else self.drifted,
            **({"NextToken": "n"} if first else {}),
        }

    def describe_change_set(self, *, StackName: str, ChangeSetName: str) -> dict[str, Any]:
        if StackName not in self.change_sets:
            raise NoChangeSet
        return {"Changes": [{"ResourceChange": each} for each in self.change_sets[StackName]]}

    def delete_change_set(self, *, StackName: str, ChangeSetName: str) -> None:
        if self.change_sets.pop(StackName, None) is None:
            raise NoChangeSet


HEAD = Side("head", (StackTemplate("Data", "p-Data", "aws://1/r", {"Resources": {"New": {"Type": "AWS::S3::Bucket"}}}),))


def look(cloud: CloudFormation, changes: list[dict[str, Any]] | None = None, text: str = "") -> Review:
    def prepare(stacks: Sequence[str]) -> None:
        assert list(stacks) == ["Data"]
        if changes is not None:
            cloud.change_sets["p-Data"] = changes

    return live.look(Review("e", "b", "h"), HEAD, cloud, prepare=prepare, text=text, sleep=lambda _: None)


def test_what_is_not_deployed_is_not_asked() -> None:
    assert look(CloudFormation(statuses={})).live == ("Data: not deployed",)


def test_what_is_being_changed_now_is_left_alone() -> None:
    (line,) = look(CloudFormation(statuses={"p-Data": "UPDATE_IN_PROGRESS"})).live
    assert "UPDATE_IN_PROGRESS" in line


def test_no_change_set_where_the_deployed_template_is_the_heads() -> None:
    cloud = CloudFormation(statuses={"p-Data": "UPDATE_COMPLETE"}, templates={"p-Data": HEAD.stacks[0].template})
    review = live.look(Review("e", "b", "h"), HEAD, cloud, prepare=lambda _: pytest.fail("nothing to prepare"), sleep=lambda _: None)
    assert review.live == ("Data: drift IN_SYNC",)


def test_drift_is_named_and_is_a_risk_until_accepted() -> None:
    modified = {
        "LogicalResourceId": "Bucket", "StackResourceDriftStatus": "MODIFIED",
        "PropertyDifferences": [{"PropertyPath": "/Versioning", "ExpectedValue": "on", "ActualValue": "off"}],
    }  # fmt: skip
    deleted = {"LogicalResourceId": "Role", "StackResourceDriftStatus": "DELETED", "PropertyDifferences": []}
    review = look(CloudFormation(statuses={"p-Data": "UPDATE_COMPLETE"}, drifted=[modified, deleted]), text="Accept: drift:Data/Role")
    assert "Data/Bucket: /Versioning on -> off" in review.live
    assert "Data/Role: somebody deleted it" in review.live
    assert [(risk.id, risk.accepted) for risk in review.risks] == [("drift:Data/Bucket", False), ("drift:Data/Role", True)]


def test_a_change_set_is_read_and_removed_and_a_replacement_in_it_is_a_risk() -> None:
    cloud = CloudFormation(statuses={"p-Data": "UPDATE_COMPLETE"})
    change = {"Action": "Modify", "LogicalResourceId": "Fs", "ResourceType": "AWS::FSx::FileSystem", "Replacement": "True"}
    review = look(cloud, [change, {"Action": "Add", "LogicalResourceId": "New", "ResourceType": "AWS::S3::Bucket"}])
    assert "Data/Fs: replaces AWS::FSx::FileSystem" in review.live
    assert "Data/New: add AWS::S3::Bucket" in review.live
    assert [risk.id for risk in review.risks] == ["replace:Data/Fs"]
    assert cloud.change_sets == {}


def test_an_empty_change_set_is_said_to_be_empty() -> None:
    assert "Data: the change set is empty" in look(CloudFormation(statuses={"p-Data": "UPDATE_COMPLETE"})).live


def test_change_sets_are_removed_also_when_preparing_them_fails() -> None:
    cloud = CloudFormation(statuses={"p-Data": "UPDATE_COMPLETE"})

    def prepare(_: Sequence[str]) -> None:
        cloud.change_sets["p-Data"] = []
        raise Failed("the second one cannot be prepared")

    review = live.look(Review("e", "b", "h"), HEAD, cloud, prepare=prepare, sleep=lambda _: None)
    assert cloud.change_sets == {}
    assert review.live == ("Data: drift IN_SYNC",), "the rest is said"
    assert review.unseen == ("Data: the change sets are not known: the second one cannot be prepared",)
    assert review.exit_code == 3


@pytest.mark.parametrize("status", ["ROLLBACK_COMPLETE", "ROLLBACK_FAILED", "DELETE_FAILED", "REVIEW_IN_PROGRESS"])
def test_a_stack_that_failed_to_be_made_is_left_alone(status: str) -> None:
    """The CDK CLI deletes such a stack before it makes a change set of it."""
    review = live.look(
        Review("e", "b", "h"), HEAD, CloudFormation(statuses={"p-Data": status}),
        prepare=lambda _: pytest.fail("nothing may be prepared"), sleep=lambda _: None,
    )  # fmt: skip
    assert review.live == (f"Data: {status}, so nothing can be asked of it now",)


def test_a_call_that_is_denied_is_said_and_the_rest_goes_on(monkeypatch: pytest.MonkeyPatch) -> None:
    cloud = CloudFormation(statuses={"p-Data": "UPDATE_COMPLETE", "p-Network": "UPDATE_COMPLETE"})

    def denied(*, StackName: str) -> dict[str, Any]:
        if StackName == "p-Network":
            raise ClientError({"Error": {"Code": "AccessDenied", "Message": "not authorized."}}, "DetectStackDrift")
        return {"StackDriftDetectionId": StackName}

    monkeypatch.setattr(cloud, "detect_stack_drift", denied)
    both = replace(HEAD, stacks=(StackTemplate("Network", "p-Network", "aws://1/r", {}), *HEAD.stacks))
    review = live.look(Review("e", "b", "h"), both, cloud, prepare=lambda stacks: None, sleep=lambda _: None)
    assert "Data: drift IN_SYNC" in review.live
    assert review.unseen == ("Network: its state and its drift are not known: DetectStackDrift: AccessDenied, not authorized",)
    assert "not known" in show.markdown(review)


def test_a_template_that_is_no_json_differs() -> None:
    cloud = CloudFormation(statuses={"p-Data": "UPDATE_COMPLETE"}, templates={"p-Data": "Resources: {}"})
    assert "Data: the change set is empty" in look(cloud).live


def test_a_detection_that_never_ends_is_given_up() -> None:
    cloud = CloudFormation(statuses={"p-Data": "UPDATE_COMPLETE"})
    cloud.checking = 10**6
    (said,) = look(cloud).unseen
    assert "has not ended after 600 s" in said
