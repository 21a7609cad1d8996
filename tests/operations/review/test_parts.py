"""The parts of a review, each with the least that shows it."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from operations.cost import Bill, Line
from operations.review import access, kubernetes, resources, risks, rules, settings, show
from operations.review.access import Grant, covers
from operations.review.compare import compare
from operations.review.effects import Effect, of_object, of_resource
from operations.review.kubernetes import ObjectChange
from operations.review.risks import Risk, accepted
from operations.review.sides import Object, Side, StackTemplate
from operations.review.values import differences, plain

Json = dict[str, Any]


def stack(resources_: Json, *, name: str = "One", protected: bool = False, parameters: Json | None = None) -> StackTemplate:
    template = {"Resources": resources_, **({"Parameters": parameters} if parameters else {})}
    return StackTemplate(name, f"hyperpod-rl-test-{name}", "aws://111122223333/us-west-2", template, protected)


def side(*stacks: StackTemplate, **more: Any) -> Side:
    return Side("some", stacks, **more)


def changed(before: Json, after: Json) -> resources.ResourceChange:
    (one,) = resources.changes(side(stack({"It": before})), side(stack({"It": after})))
    (change,) = one.resources
    return change


# --- values ---


def test_a_joined_text_that_is_json_is_compared_inside() -> None:
    before = plain({"Fn::Join": ["", ['{"a": "', {"Ref": "X"}, '", "b": 1}']]})
    after = plain({"Fn::Join": ["", ['{"a": "', {"Ref": "X"}, '", "b": 2}']]})
    assert [each.sentence() for each in differences({"Values": before}, {"Values": after})] == ["Values/b: 1 -> 2"]


def test_members_with_names_are_compared_by_name_and_others_as_sets() -> None:
    before = [{"Name": "a", "V": 1}, {"Name": "b", "V": 1}]
    after = [{"Name": "b", "V": 2}, {"Name": "c", "V": 1}]
    assert [each.path for each in differences(before, after, "L")] == ["L[a]", "L[b]/V", "L[c]"]
    assert [each.sentence() for each in differences(["x", "y"], ["y", "z"], "L")] == ["L[]: - x", "L[]: + z"]
    assert [each.sentence() for each in differences(["x", "y"], ["y", "x"], "L")] == ['L: ["x", "y"] -> ["y", "x"]']


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=4), inner, max_size=4),
    max_leaves=12,
)


@given(json_values, json_values)
def test_a_difference_is_named_exactly_if_there_is_one(one: Any, two: Any) -> None:
    assert not list(differences(one, one))
    if json.dumps(one, sort_keys=True) != json.dumps(two, sort_keys=True) and not _same_json(one, two):
        assert list(differences(one, two))


def _same_json(one: Any, two: Any) -> bool:
    """Python counts True as 1, and a text of JSON is what it says."""
    return bool(one == two) or "[" in json.dumps([one, two])[1:] or "{" in json.dumps([one, two])


# --- resources ---


def test_a_create_only_property_replaces_and_is_named() -> None:
    subnet = {"Type": "AWS::EC2::Subnet", "Properties": {"VpcId": "vpc-1", "CidrBlock": "10.0.0.0/24"}}
    change = changed(subnet, {**subnet, "Properties": {"VpcId": "vpc-1", "CidrBlock": "10.0.1.0/24"}})
    assert (change.action, change.forced_by) == ("replaced", ("CidrBlock",))
    assert of_resource(change)[0] is Effect.NODE_REPLACEMENT


def test_what_has_a_name_of_its_own_is_refused() -> None:
    bucket: Json = {"Type": "AWS::EKS::Cluster", "Properties": {"Name": "mine", "RoleArn": "a"}}
    assert "refuses" in changed(bucket, {**bucket, "Properties": {"Name": "mine", "RoleArn": "b"}}).refusal
    assert changed(bucket, {**bucket, "Properties": {"Name": "other", "RoleArn": "a"}}).refusal == ""
    addon = {"Type": "AWS::EKS::Addon", "Properties": {"AddonName": "vpc-cni", "ClusterName": "a"}}
    assert changed(addon, {**addon, "Properties": {"AddonName": "vpc-cni", "ClusterName": "b"}}).refusal == ""


def test_a_property_that_the_schema_lacks_and_the_user_guide_has() -> None:
    lustre = {"Type": "AWS::FSx::FileSystem", "Properties": {"LustreConfiguration": {"DeploymentType": "PERSISTENT_1"}}}
    change = changed(lustre, {**lustre, "Properties": {"LustreConfiguration": {"DeploymentType": "PERSISTENT_2"}}})
    assert change.forced_by == ("LustreConfiguration/DeploymentType",)


def test_replacement_goes_through_references_and_through_parameters_of_other_stacks() -> None:
    def lower(cidr: str) -> StackTemplate:
        return stack(
            {
                "Net": {"Type": "AWS::EC2::Subnet", "Properties": {"VpcId": "v", "CidrBlock": cidr}},
                "Pub": {"Type": "AWS::SSM::Parameter", "Properties": {"Name": "/p", "Value": {"Ref": "Net"}}},
            }
        )

    upper = stack(
        {"Fs": {"Type": "AWS::FSx::FileSystem", "Properties": {"SubnetIds": [{"Ref": "Sub"}]}}},
        name="Two",
        parameters={"Sub": {"Type": "AWS::SSM::Parameter::Value<String>", "Default": "/p"}},
    )
    found = resources.changes(side(lower("10.0.0.0/24"), upper), side(lower("10.0.1.0/24"), upper))
    assert {change.id: change.action for each in found for change in each.resources} == {
        "One/Net": "replaced",
        "One/Pub": "changed",
        "Two/Fs": "replaced",
    }
    assert not resources.changes(side(lower("10.0.0.0/24"), upper), side(lower("10.0.0.0/24"), upper))


def test_a_removed_stack_is_an_orphan_and_a_protection_that_goes_is_named() -> None:
    one, two = stack({"It": {"Type": "AWS::S3::Bucket"}}, protected=True), stack({"It": {"Type": "AWS::S3::Bucket"}})
    other = stack({}, name="Two")
    review = compare("test", side(one, other), side(two))
    assert {risk.id for risk in review.risks} == {"unprotect:One", "orphan:hyperpod-rl-test-Two"}


@pytest.mark.parametrize(("policy", "risky"), [("Retain", False), ("RetainExceptOnCreate", False), ("Delete", True), (None, True)])
def test_data_that_is_removed_is_flagged_unless_it_stays(policy: str | None, risky: bool) -> None:
    bucket = {"Type": "AWS::S3::Bucket", **({"DeletionPolicy": policy} if policy else {})}
    review = compare(
        "test", side(stack({"Data": bucket, "X": {"Type": "AWS::S3::Bucket"}})), side(stack({"X": {"Type": "AWS::S3::Bucket"}}))
    )
    assert [risk.id for risk in review.risks] == (["remove:One/Data"] if risky else [])
    assert review.worst is (Effect.DATA_LOSS if risky else Effect.NOTHING)


# --- access ---


def role(*statements: Json, **more: Any) -> Json:
    return {
        "Type": "AWS::IAM::Role",
        "Properties": {"Policies": [{"PolicyName": "p", "PolicyDocument": {"Statement": list(statements)}}], **more},
    }


def allow(action: object, on: object = "*", **more: Any) -> Json:
    return {"Effect": "Allow", "Action": action, "Resource": on, **more}


@pytest.mark.parametrize(
    ("before", "after", "widened"),
    [
        (allow("s3:GetObject", "arn:a/*"), allow("s3:GetObject", "arn:a/b"), []),
        (allow("s3:Get*"), allow("s3:GetObject"), []),
        (allow("S3:getobject"), allow("s3:GetObject"), []),
        (allow("s3:GetObject"), allow("s3:Get*"), ["s3:Get* on *"]),
        (allow("s3:GetObject", "arn:a/b"), allow("s3:GetObject", "arn:a/*"), ["s3:GetObject on arn:a/*"]),
        (allow("s3:GetObject"), allow(["s3:GetObject", "s3:PutObject"]), ["s3:PutObject on *"]),
        (allow("a:b", Condition={"StringEquals": {"k": "v"}}), allow("a:b"), ["a:b on *"]),
        (allow("a:b"), allow("a:b", Condition={"StringEquals": {"k": "v"}}), []),
        (allow("a:b"), {"Effect": "Allow", "NotAction": "a:c", "Resource": "*"}, ["all but a:c on *"]),
    ],
)
def test_a_statement_widens_exactly_if_it_allows_what_the_old_one_did_not(before: Json, after: Json, widened: list[str]) -> None:
    found = access.widenings(side(stack({"R": role(before)})), side(stack({"R": role(after)})))
    assert [sentence for each in found for sentence in each.sentences] == widened
    assert all(each.subject == "One/R" for each in found)


def test_a_deny_that_is_gone_and_a_managed_policy_that_came() -> None:
    deny = {"Effect": "Deny", "Action": "a:b", "Resource": "*"}
    found = access.widenings(side(stack({"R": role(deny)})), side(stack({"R": role(ManagedPolicyArns=["arn:Admin"])})))
    assert found[0].sentences == ("managed policy arn:Admin", "no longer denied: a:b on *")


def test_a_new_keys_own_policy_is_no_news_but_a_public_one_is() -> None:
    def key(who: str) -> Json:
        return {"Type": "AWS::KMS::Key", "Properties": {"KeyPolicy": {"Statement": [allow("kms:*", Principal={"AWS": who})]}}}

    assert not access.widenings(side(stack({})), side(stack({"K": key("arn:root")})))
    assert access.widenings(side(stack({})), side(stack({"K": key("*")})))
    assert access.widenings(side(stack({"K": key("arn:root")})), side(stack({"K": key("arn:other")})))


patterns = st.text(alphabet="ab:*?", min_size=1, max_size=6)


@given(patterns, patterns)
def test_a_grant_covers_itself_and_everything_is_covered_by_a_star(action: str, on: str) -> None:
    assert covers(Grant("s", action, on), Grant("s", action, on))
    assert covers(Grant("s", "*", "*"), Grant("s", action, on))
    if covers(Grant("s", action, on), Grant("s", "*", on)):
        assert set(action) == {"*"}


def group(**properties: Any) -> Json:
    return {"Type": "AWS::EC2::SecurityGroup", "Properties": properties}


def tcp(low: int, high: int, peer: str) -> Json:
    return {"IpProtocol": "tcp", "FromPort": low, "ToPort": high, "CidrIp": peer}


@pytest.mark.parametrize(
    ("before", "after", "widened"),
    [
        ([tcp(1, 100, "10.0.0.0/8")], [tcp(50, 60, "10.1.0.0/16")], []),
        ([tcp(50, 60, "10.1.0.0/16")], [tcp(50, 61, "10.1.0.0/16")], ["tcp 50-61 from 10.1.0.0/16"]),
        ([tcp(443, 443, "10.0.0.0/8")], [tcp(443, 443, "0.0.0.0/0")], ["tcp 443 from 0.0.0.0/0"]),
        ([{"IpProtocol": "-1", "CidrIp": "10.0.0.0/8"}], [tcp(443, 443, "10.0.0.0/8")], []),
        ([tcp(1, 65535, "10.0.0.0/8")], [{"IpProtocol": "-1", "CidrIp": "10.0.0.0/8"}], ["everything from 10.0.0.0/8"]),
    ],
)
def test_a_rule_widens_exactly_if_no_old_one_covers_it(before: list[Json], after: list[Json], widened: list[str]) -> None:
    closed = [tcp(443, 443, "10.0.0.0/8")]
    old, new = (side(stack({"G": group(SecurityGroupIngress=rules_, SecurityGroupEgress=closed)})) for rules_ in (before, after))
    assert [sentence for _, sentence in rules.widened(old, new)] == widened


def test_a_group_without_a_rule_for_what_leaves_lets_everything_out() -> None:
    closed = side(stack({"G": group(SecurityGroupEgress=[tcp(443, 443, "10.0.0.0/8")])}))
    assert [sentence for _, sentence in rules.widened(closed, side(stack({"G": group()})))] == ["everything to 0.0.0.0/0"]


def test_a_new_group_counts_only_where_it_lets_the_world_in() -> None:
    none, private = side(stack({})), side(stack({"G": group(SecurityGroupIngress=[tcp(22, 22, "10.0.0.0/8")])}))
    assert not list(rules.widened(none, private))
    assert list(rules.widened(none, side(stack({"G": group(SecurityGroupIngress=[tcp(22, 22, "0.0.0.0/0")])}))))


# --- Kubernetes ---


def objects(*bodies: Json) -> Side:
    made = {f"{b['kind']} ns/{b['metadata']['name']}": Object("cdk deploy", b) for b in bodies}
    return side(objects={"Namespace ns": Object("cdk deploy", {"kind": "Namespace", "metadata": {"name": "ns"}}), **made})


def policy(*ingress: Json, types: tuple[str, ...] = ("Ingress",)) -> Json:
    metadata = {"name": "p", "namespace": "ns"}
    return {"kind": "NetworkPolicy", "metadata": metadata, "spec": {"policyTypes": list(types), "ingress": list(ingress)}}


PEER, PORT = {"podSelector": {"matchLabels": {"a": "b"}}}, {"port": 80}


@pytest.mark.parametrize(
    ("before", "after", "count"),
    [
        (policy({"from": [PEER]}), policy({"from": [PEER], "ports": [PORT]}), 0),
        (policy({"from": [PEER], "ports": [PORT]}), policy({"from": [PEER]}), 1),
        (policy({"from": [PEER]}), policy({}), 1),
        (policy({}), policy({"from": [PEER]}), 0),
        (policy(), policy(types=("Egress",)), 1),
    ],
)
def test_a_network_policy_widens_exactly_if_more_can_come_in(before: Json, after: Json, count: int) -> None:
    assert len(list(kubernetes.widened(objects(before), objects(after)))) == count


def test_a_network_policy_that_is_gone_opens_its_pods() -> None:
    assert [key for key, _ in kubernetes.widened(objects(policy()), objects())] == ["NetworkPolicy ns/p"]


def test_rights_of_a_role_are_compared_one_by_one() -> None:
    def right(*verbs: str, resource: str = "pods") -> Json:
        rule = {"apiGroups": [""], "resources": [resource], "verbs": list(verbs)}
        return {"kind": "Role", "metadata": {"name": "r", "namespace": "ns"}, "rules": [rule]}

    assert [said for _, said in kubernetes.widened(objects(right("get")), objects(right("get", "delete")))] == ["delete pods"]
    assert not list(kubernetes.widened(objects(right("*", resource="*")), objects(right("delete"))))


def test_a_one_shot_job_with_another_hash_is_the_same_object() -> None:
    one, two = ({"kind": "Job", "metadata": {"name": f"fetch-{tail}"}, "spec": {"a": tail}} for tail in ("0123456789", "abcdef0123"))
    (change,) = kubernetes.changes(
        side(objects={"Job ns/fetch-0123456789": Object("cluster up", one)}),
        side(objects={"Job ns/fetch-abcdef0123": Object("cluster up", two)}),
    )
    assert change.action == "changed"


def test_a_claim_that_changes_cannot_be_applied() -> None:
    claim = {"kind": "PersistentVolumeClaim", "spec": {"volumeName": "a"}}
    differs = tuple(differences(claim, {**claim, "spec": {"volumeName": "b"}}))
    effect, why = of_object(ObjectChange("PersistentVolumeClaim ns/c", "changed", "cdk deploy", differs))
    assert effect is Effect.POD_RESTART
    assert "refuses" in why


# --- settings, risks ---


def test_a_setting_that_lets_people_in_is_wider_access() -> None:
    base, head = (side(facts={"environment": {"serving": {"authentication": value}}}) for value in ("api-key", "none"))
    assert [place for place, _ in settings.widened(base, head)] == ["serving.authentication"]
    assert not list(settings.widened(head, base))


RISKS = [Risk("replace:Data/FileSystem", ""), Risk("cost:+30%", "")]


@pytest.mark.parametrize(
    ("text", "names"),
    [
        ("", []),
        ("Accept: replace:Data/FileSystem", ["replace:Data/FileSystem"]),
        ("- accepts: `replace:Data/FileSystem`, cost:+30%.", ["replace:Data/FileSystem", "cost:+30%"]),
        ("Accept: cost:+40%", ["cost:+30%"]),
        ("Accept: cost:+29%", []),
        ("Accept: replace:Data", []),
        ("I accept: replace:Data/FileSystem", []),
        ("<!-- Accept: replace:Data/FileSystem -->", []),
        ("<!--\nAccept: cost:+30%", []),
        ("```\nAccept: cost:+30%\n```", []),
        ("```\nx\n```\nAccept: cost:+30%", ["cost:+30%"]),
    ],
)
def test_a_line_accepts_exactly_what_it_names(text: str, names: list[str]) -> None:
    assert [risk.id for risk in accepted(RISKS, text) if risk.accepted] == names


def bill(usd: float) -> Bill:
    return Bill((Line("nodes", "1", usd, None),))


@pytest.mark.parametrize(("after", "found"), [(100.0, []), (110.0, []), (110.1, ["cost:+11%"]), (250.0, ["cost:+150%"]), (50.0, [])])
def test_more_than_the_allowed_percentage_is_a_risk(after: float, found: list[str]) -> None:
    assert [risk.id for risk in risks.risks((), (), bill(100.0), bill(after), percent=10)] == found


# --- what is shown ---


def test_markdown_marks_itself_and_keeps_text_of_templates_as_text() -> None:
    hostile = "`@somebody` [x](http://y) <img>"
    one, two = (stack({"It": {"Type": "AWS::SSM::Parameter", "Properties": {"Name": "/p", "Value": v}}}) for v in ("a", hostile))
    text = show.markdown(compare("test", side(one), side(two)))
    assert text.startswith("<!-- hyperpod-rl review test -->")
    assert f"`` Value: a -> {hostile} ``" in text or f"``Value: a -> {hostile}``" in text


def test_a_long_review_fits_a_comment() -> None:
    many = {f"P{n}": {"Type": "AWS::SSM::Parameter", "Properties": {"Name": f"/{n}", "Value": "x" * 80}} for n in range(2000)}
    text = show.markdown(
        compare("test", side(stack({"X": {"Type": "AWS::S3::Bucket"}})), side(stack({"X": {"Type": "AWS::S3::Bucket"}, **many})))
    )
    assert len(text) < 65_536
    assert "cut here" in text


def test_the_document_has_what_a_gate_needs() -> None:
    bucket = {"Type": "AWS::S3::Bucket"}
    document = show.document(compare("test", side(stack({"A": bucket, "B": bucket})), side(stack({"A": bucket}))))
    assert document["exit_code"] == 1
    assert document["risks"] == [{"id": "remove:One/B", "sentence": document["risks"][0]["sentence"], "accepted": False}]
    assert document["effect"] == "data loss"
    json.dumps(document)


def test_a_new_environment_has_nothing_to_harm() -> None:
    review = compare("new", side(), side(stack({"R": role(allow("*"))})))
    assert not review.risks
    assert "a new environment" in show.headline(review)
