"""Kinds of change that deploy without a word of CloudFormation's, and that somebody would have wanted to know of."""

from __future__ import annotations

from typing import Any

import pytest
from markdown_it import MarkdownIt

from operations.cost import Bill, Line
from operations.review import access, kubernetes, resources, risks, rules, show
from operations.review.compare import compare
from operations.review.sides import Object, Side
from tests.operations.review.test_parts import allow, role, side, stack

Json = dict[str, Any]


def risks_of(before: Json, after: Json) -> dict[str, str]:
    return {risk.id: risk.sentence for risk in compare("e", side(stack(before)), side(stack(after))).risks}


def lifecycle(**rule: Any) -> Json:
    return {"LifecycleConfiguration": {"Rules": [{"Status": "Enabled", **rule}]}}


FSX = {"FileSystemType": "LUSTRE", "StorageCapacity": 1200}


@pytest.mark.parametrize(
    ("kind", "before", "after", "said"),
    [
        ("S3::Bucket", {"VersioningConfiguration": {"Status": "Enabled"}}, {}, "no versions any more"),
        ("S3::Bucket", {}, lifecycle(ExpirationInDays=7), "after 7 days (before: never)"),
        ("S3::Bucket", lifecycle(ExpirationInDays=30), lifecycle(ExpirationInDays=7), "after 7 days (before: 30 days)"),
        ("S3::Bucket", lifecycle(ExpirationInDays=30), lifecycle(ExpirationInDays=60), ""),
        ("S3::Bucket", lifecycle(ExpirationInDays=7), lifecycle(ExpirationInDays=7, Prefix="runs/"), ""),
        ("S3::Bucket", {}, {**lifecycle(ExpirationInDays=7), "x": 1} | lifecycle(ExpirationInDays=7, Status="Disabled"), ""),
        ("S3::Bucket", lifecycle(NoncurrentVersionExpiration={"NoncurrentDays": 90}),
         lifecycle(NoncurrentVersionExpiration={"NoncurrentDays": 1}), "older versions of objects"),
        ("ECR::Repository", {"ImageTagMutability": "IMMUTABLE"}, {"ImageTagMutability": "MUTABLE"}, "tag"),
        ("FSx::FileSystem", {**FSX, "LustreConfiguration": {"AutomaticBackupRetentionDays": 7}},
         {**FSX, "LustreConfiguration": {"AutomaticBackupRetentionDays": 0}}, "no daily backups"),
        ("FSx::FileSystem", {**FSX, "LustreConfiguration": {"AutomaticBackupRetentionDays": 7}},
         {**FSX, "LustreConfiguration": {"AutomaticBackupRetentionDays": 30}}, ""),
        ("Logs::LogGroup", {}, {"RetentionInDays": 7}, "after 7 days, not never"),
        ("Logs::LogGroup", {"RetentionInDays": 7}, {"RetentionInDays": 30}, ""),
        ("KMS::Key", {"Enabled": True}, {"Enabled": False}, "cannot be read"),
        ("EKS::Cluster", {"Name": "a", "DeletionProtection": True}, {"Name": "a", "DeletionProtection": False}, "one call deletes it"),
    ],
)  # fmt: skip
def test_what_keeps_data_and_keeps_less(kind: str, before: Json, after: Json, said: str) -> None:
    sides = ({"It": {"Type": f"AWS::{kind}", "Properties": each}} for each in (before, after))
    found = risks_of(*sides).get("unprotect:One/It", "")
    assert said in found
    assert bool(said) == bool(found)


@pytest.mark.parametrize(("old", "new", "refused"), [("1.34", "1.35", False), ("1.34", "1.36", True), ("1.34", "1.33", True)])
def test_a_control_plane_goes_up_one_minor_version_at_a_time(old: str, new: str, refused: bool) -> None:
    sides = ({"It": {"Type": "AWS::EKS::Cluster", "Properties": {"Name": "a", "Version": version}}} for version in (old, new))
    assert ("refused:One/It" in risks_of(*sides)) == refused


def test_more_of_what_has_no_price_needs_a_word_though_the_sum_is_lower() -> None:
    def bill(quantity: str) -> Bill:
        return Bill((Line("nodes", quantity, None, None), Line("others", "1", 10.0 if quantity[0] == "1" else 1.0, None)))

    assert [each.id for each in risks.risks((), (), bill("1 x ml.p5.48xlarge"), bill("8 x ml.p5.48xlarge"), percent=10)] == [
        "cost:unpriced"
    ]
    assert not risks.risks((), (), bill("8 x ml.p5.48xlarge"), bill("1 x ml.p5.48xlarge"), percent=1000)


# --- access ---


DENY = {"Effect": "Deny", "Action": "s3:*", "Resource": "*", "Principal": "*"}


def test_a_policy_that_goes_whole_takes_its_denials_from_the_bucket_that_stays() -> None:
    bucket: Json = {"It": {"Type": "AWS::S3::Bucket", "Properties": {}}}
    properties = {"Bucket": {"Ref": "It"}, "PolicyDocument": {"Statement": [DENY]}}
    policy = {"P": {"Type": "AWS::S3::BucketPolicy", "Properties": properties}}
    (found,) = access.widenings(side(stack({**bucket, **policy})), side(stack(bucket)))
    assert found.subject == "One/It"
    assert not access.widenings(side(stack({**bucket, **policy})), side(stack({})))
    assert not access.widenings(side(stack({**bucket, **policy})), side(stack({**bucket, "Other": policy["P"]})))


def test_a_boundary_that_goes_and_a_policy_of_any_type() -> None:
    bounded = role(allow("s3:*"))
    bounded["Properties"]["PermissionsBoundary"] = "arn:aws:iam::aws:policy/Boundary"
    (found,) = access.widenings(side(stack({"R": bounded})), side(stack({"R": role(allow("s3:*"))})))
    assert "no longer bounded" in found.sentences[0]
    secrets = [{"It": {"Type": "AWS::SecretsManager::ResourcePolicy", "Properties": {"ResourcePolicy": {"Statement": [allow(action)]}}}}
               for action in ("secretsmanager:DescribeSecret", "secretsmanager:*")]  # fmt: skip
    assert access.widenings(*(side(stack(each)) for each in secrets))
    assert not access.widenings(*(side(stack(each)) for each in reversed(secrets)))


@pytest.mark.parametrize(
    ("operator", "old", "new", "wider"),
    [
        ("StringEquals", ["a", "b"], "a", False),
        ("StringEquals", "a", ["a", "b"], True),
        ("StringLike", "repo:me/it:*", "repo:me/it:ref:refs/heads/main", False),
        ("StringEquals", "a*", "ab", True),
        ("StringNotEquals", "a", ["a", "b"], False),
        ("StringNotEquals", ["a", "b"], "a", True),
        ("NumericLessThan", "5", "6", True),
    ],
)
def test_a_condition_is_wider_if_it_lets_more_values_through(operator: str, old: Any, new: Any, wider: bool) -> None:
    sides = (side(stack({"R": role({**allow("s3:GetObject"), "Condition": {operator: {"k": value}}})})) for value in (old, new))
    assert bool(access.widenings(*sides)) == wider


def route(where: str, through: Json) -> Json:
    return {
        "Table": {"Type": "AWS::EC2::RouteTable", "Properties": {}},
        "Internet": {"Type": "AWS::EC2::InternetGateway"},
        "R": {"Type": "AWS::EC2::Route", "Properties": {"RouteTableId": {"Ref": "Table"}, "DestinationCidrBlock": where, **through}},
    }


NAT, INTERNET = {"NatGatewayId": {"Ref": "Nat"}}, {"GatewayId": {"Ref": "Internet"}}


@pytest.mark.parametrize(
    ("before", "after", "said"),
    [
        (route("10.0.0.0/8", NAT), route("0.0.0.0/0", NAT), "a way to the internet"),
        (route("0.0.0.0/0", NAT), route("0.0.0.0/0", INTERNET), "can be reached from"),
        (route("0.0.0.0/0", NAT), route("10.0.0.0/8", NAT), ""),
        (route("0.0.0.0/0", INTERNET), route("0.0.0.0/0", INTERNET), ""),
    ],
)
def test_a_route_that_leads_elsewhere(before: Json, after: Json, said: str) -> None:
    found = [sentence for _, sentence in rules.widened(side(stack(before)), side(stack(after)))]
    assert bool(found) == bool(said)
    assert all(said in each for each in found)


def test_a_new_group_open_to_everybody_and_an_endpoint_that_nobody_closed() -> None:
    group = {"G": {"Type": "AWS::EC2::SecurityGroup", "Properties": {"SecurityGroupIngress": [
        {"IpProtocol": "tcp", "FromPort": 22, "ToPort": 22, "CidrIp": "0.0.0.0/0"}]}}}  # fmt: skip
    assert list(rules.widened(side(stack({})), side(stack(group))))
    closed, unsaid = ({"E": {"Type": "AWS::EKS::Cluster", "Properties": {"ResourcesVpcConfig": each}}}
                      for each in ({"EndpointPublicAccess": False}, {}))  # fmt: skip
    assert list(rules.widened(side(stack(closed)), side(stack(unsaid))))


# --- Kubernetes ---


def objects(*bodies: Json) -> Side:
    found = {"Namespace ns": {"kind": "Namespace", "metadata": {"name": "ns"}}}
    for body in bodies:
        found[f"{body['kind']} ns/{body['metadata']['name']}"] = body
    return side(objects={key: Object("cdk deploy", body) for key, body in found.items()})


def policy(name: str, peer: Json) -> Json:
    spec = {"podSelector": {}, "policyTypes": ["Ingress"], "ingress": [{"from": [peer]}]}
    return {"kind": "NetworkPolicy", "metadata": {"name": name, "namespace": "ns"}, "spec": spec}


def test_one_more_policy_opens_what_another_had_closed() -> None:
    own, everybody = {"podSelector": {}}, {"ipBlock": {"cidr": "0.0.0.0/0"}}
    closed = policy("closed", own)
    assert list(kubernetes.widened(objects(closed), objects(closed, policy("open", everybody))))
    assert not list(kubernetes.widened(objects(closed), objects(closed, policy("same", own))))
    assert not list(kubernetes.widened(objects(), objects(policy("open", everybody)))), "without another one the pods were open anyway"


def test_a_service_for_others_than_pods_and_a_pod_that_reaches_its_node() -> None:
    def service(**spec: Any) -> Json:
        return {"kind": "Service", "metadata": {"name": "s", "namespace": "ns"}, "spec": spec}

    outside = service(type="LoadBalancer", loadBalancerSourceRanges=["10.0.0.0/8"])
    assert [said for _, said in kubernetes.widened(objects(service()), objects(outside))][-1] == "it answers 10.0.0.0/8"
    assert [said for _, said in kubernetes.widened(objects(outside), objects(service(type="LoadBalancer")))]
    pod = {
        "kind": "Deployment",
        "metadata": {"name": "d", "namespace": "ns"},
        "spec": {"volumes": [{"name": "n", "hostPath": {"path": "/"}}]},
    }
    assert [said for _, said in kubernetes.widened(objects(), objects(pod))] == ["spec/volumes[0]/hostPath is /"]


def test_what_the_api_server_lets_nobody_change_is_refused() -> None:
    def binding(name: str) -> Json:
        return {"kind": "RoleBinding", "metadata": {"name": "b", "namespace": "ns"}, "roleRef": {"name": name}, "subjects": []}

    found = compare("e", moved(objects(binding("a"))), moved(objects(binding("b"))))
    assert [risk.id for risk in found.risks] == ["refused:RoleBinding:ns/b"]


def moved(one: Side) -> Side:
    return Side("some", (stack({}),), one.objects)


def test_a_volume_follows_its_file_system() -> None:
    """Its text is the same; what it names is not."""

    def sides(subnet: str, retain: Json) -> Side:
        manifest = {"Fn::Join": ["", ['[{"kind":"PersistentVolume","metadata":{"name":"v"},"spec":{"csi":{"volumeHandle":"', {"Ref": "F"},
                                      '"}}}]']]}  # fmt: skip
        body = {
            "F": {"Type": "AWS::FSx::FileSystem", "Properties": {**FSX, "SubnetIds": [subnet]}, **retain},
            "O": {"Type": "Custom::AWSCDK-EKS-KubernetesResource", "Properties": {"Manifest": manifest}},
        }
        volume = {"kind": "PersistentVolume", "metadata": {"name": "v"}, "spec": {"csi": {"volumeHandle": "${F}"}}}
        return side(stack(body), objects={"PersistentVolume v": Object("cdk deploy", volume)})

    review = compare("e", sides("a", {}), sides("b", {}))
    assert {risk.id for risk in review.risks} == {"replace:One/F", "refused:PersistentVolume:v"}
    assert review.objects[0].differences[0].sentence() == "spec/csi/volumeHandle: ${F} -> ${F (replaced)}"


# --- references and templates ---


def test_a_reference_inside_a_substituted_text_moves_with_what_it_names() -> None:
    def sides(cidr: str) -> Side:
        return side(stack({
            "S": {"Type": "AWS::EC2::Subnet", "Properties": {"VpcId": "v", "CidrBlock": cidr}},
            "I": {"Type": "AWS::EC2::Instance", "Properties": {"SubnetId": {"Fn::Sub": "${S}"}}},
        }))  # fmt: skip

    (one,) = resources.changes(sides("10.0.0.0/24"), sides("10.0.1.0/24"))
    assert {change.id: change.action for change in one.resources} == {"One/S": "replaced", "One/I": "replaced"}


def test_what_only_an_output_shows_is_a_change() -> None:
    one, two = stack({}), stack({})
    two.template["Outputs"] = {"Of": {"Value": "x"}}  # type: ignore[index]
    review = compare("e", side(one), side(two))
    assert review.changed
    assert review.stacks[0].differences[0].path == "Outputs"


# --- words ---


RISKS = [risks.Risk("replace:Data/FileSystem", "")]


@pytest.mark.parametrize(
    ("text", "accepts"),
    [
        ("* Accept: replace:Data/FileSystem", True),
        ("1. one\n   - Accept: `replace:Data/FileSystem`", True),
        ("Because.\nAccept: replace:Data/FileSystem", True),
        ("````\n```\nAccept: replace:Data/FileSystem\n```\n````", False),
        ("text\n\n    Accept: replace:Data/FileSystem", False),
        ("> Accept: replace:Data/FileSystem", False),
        ("> somebody wrote\nAccept: replace:Data/FileSystem", False),
        ("# Accept: replace:Data/FileSystem", False),
        ("<pre>\nAccept: replace:Data/FileSystem\n</pre>", False),
        ("- [ ] Accept: replace:Data/FileSystem", False),
        ("~~Accept: replace:Data/FileSystem~~", False),
    ],
)
def test_a_line_accepts_as_github_shows_it(text: str, accepts: bool) -> None:
    assert risks.accepted(RISKS, text)[0].accepted == accepts


def wide(count: int) -> Side:
    return side(stack({f"P{n}": {"Type": "AWS::SSM::Parameter", "Properties": {"Name": f"/{n}", "Value": "x" * 80}} for n in range(count)}))


@pytest.mark.parametrize("longest", [600, 3_000, 60_000])
def test_a_review_that_is_cut_folds_nothing_of_the_next_one_away_and_still_says_how_to_accept(longest: int) -> None:
    base = side(stack({"B": {"Type": "AWS::S3::Bucket", "Properties": {}}}))
    text = show.markdown(compare("test", base, wide(3000)), longest=longest)
    assert len(text) <= longest
    assert show.CUT in text
    assert text.count("<details>") == text.count("</details>")
    assert "Accept: remove:One/B" in text


def test_nothing_in_a_comment_is_markup_but_ours() -> None:
    hostile = "x --> @somebody #1 <img src=x> **a** `b` \x1b[31m"
    review = compare(hostile, side(stack({})), wide(2))
    for token in MarkdownIt("commonmark").parse(show.markdown(review)):
        for each in (token, *(token.children or ())):
            assert "@" not in each.content or each.type in ("code_inline", "inline"), each
            assert "\x1b" not in each.content
