"""Who may do more than before: IAM, security groups, the API server, buckets, routes. A grant that an older one covers is no news.

Every grant is five texts: who has it, what it allows, on what, for whom, and under which condition. Patterns (`s3:Get*`,
`arn:…/*`, address ranges, port ranges) cover what they match, so that a narrower statement in place of a wider one is silent.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cache
from typing import Any

from operations.review import rules
from operations.review.sides import Side, StackTemplate
from operations.review.values import named, plain, shown

# A file of this project in the bootstrap bucket: its name is a hash of its content, and another content is no other right.
_ASSET = re.compile(r"(:cdk-[a-z0-9]+-assets-[^/]+/)[0-9a-f]{64}")


@dataclass(frozen=True)
class Grant:
    """Something that `subject` (a resource, `Stack/LogicalId`) allows. `condition` is JSON, empty for none."""

    subject: str
    action: str
    on: str = ""
    by: str = ""
    condition: str = ""
    # Written at what is reached (a bucket's or a key's policy), not at who reaches it.
    own: bool = False

    def sentence(self) -> str:
        """For people."""
        parts = [self.action, f"on {self.on}" if self.on else "", f"for {self.by}" if self.by else ""]
        return " ".join(part for part in parts if part) + (f" if {self.condition}" if self.condition else "")


@dataclass(frozen=True)
class Widening:
    """What one resource, or one Kubernetes object, lets through that was not let through before."""

    subject: str
    sentences: tuple[str, ...]


_FOR_ROLES = ("AWS::IAM::Policy", "AWS::IAM::ManagedPolicy")


def widenings(base: Side, head: Side) -> tuple[Widening, ...]:
    """Everything that the head allows and the base does not, by what allows it. A new stack's own rules open what is new with it."""
    before = [grant for stack in base.stacks for grant in grants(stack)]
    known: dict[str, list[Grant]] = {}
    for grant in before:
        known.setdefault(grant.subject, []).append(grant)
    there = _resources(base)
    found: dict[str, list[str]] = {}
    for stack in head.stacks:
        for grant in grants(stack):
            if grant.own and grant.by != "*" and grant.subject not in there:
                continue  # a new resource's own policy opens what is new with it
            if not any(covers(old, grant) for old in known.get(grant.subject, ())):
                found.setdefault(grant.subject, []).append(grant.sentence())
    for subject, sentence in _gone_denials(base, head):
        found.setdefault(subject, []).append(sentence)
    for subject, sentence in rules.widened(base, head):
        found.setdefault(subject, []).append(sentence)
    return tuple(Widening(subject, tuple(dict.fromkeys(sentences))) for subject, sentences in found.items())


def _resources(side: Side) -> set[str]:
    return {f"{stack.name}/{logical}" for stack in side.stacks for logical in stack.resources}


def narrowed(base: Side, head: Side) -> tuple[str, ...]:
    """Resources that allow less than before: whoever used what is gone is refused from the deploy on."""
    known: dict[str, list[Grant]] = {}
    for stack in head.stacks:
        for grant in grants(stack):
            known.setdefault(grant.subject, []).append(grant)
    subjects = [
        grant.subject
        for stack in base.stacks
        for grant in grants(stack)
        if not any(covers(new, grant) for new in known.get(grant.subject, ()))
    ]
    return tuple(dict.fromkeys(subjects))


def covers(old: Grant, new: Grant) -> bool:
    """Whether whoever has the old grant could do all of the new one."""
    return (
        _pattern(old.action.lower()).fullmatch(new.action.lower()) is not None
        and _pattern(old.on).fullmatch(new.on) is not None
        and (old.by in (new.by, "*"))
        and _condition_covers(old.condition, new.condition)
    )


@cache
def _pattern(text: str) -> re.Pattern[str]:
    return re.compile("".join(".*" if c == "*" else "[^*]" if c == "?" else re.escape(c) for c in text), re.DOTALL)


def _condition_covers(old: str, new: str) -> bool:
    """A condition more is a narrower grant."""
    if not old or old == new:
        return True
    if not new:
        return False
    one, two = json.loads(old), json.loads(new)
    return all(
        operator in two and all(_values_cover(operator, value, two[operator].get(key)) for key, value in keys.items())
        for operator, keys in one.items()
        if isinstance(keys, dict)
    )


def _values_cover(operator: str, old: Any, new: Any) -> bool:
    """Fewer values that match, or more that must not, are a narrower condition."""
    if old == new:
        return True
    if new is None or not re.search(r"(String|Arn|Bool|IpAddress)", operator):
        return False
    olds, news = ({str(each) for each in _list(value)} for value in (old, new))
    if "Not" in operator:
        return olds <= news
    patterns = [_pattern(each) if "Like" in operator else re.compile(re.escape(each)) for each in olds]
    return all(any(pattern.fullmatch(each) for pattern in patterns) for each in news)


def grants(stack: StackTemplate) -> Iterator[Grant]:
    """Everything that the resources of a stack allow, as far as it is written in the template."""
    for logical, body in stack.resources.items():
        reader = _READERS.get(str(body.get("Type")), _any_document)
        for grant in reader(f"{stack.name}/{logical}", plain(body.get("Properties", {})), stack.name):
            yield replace(grant, on=_ASSET.sub(r"\1ASSET", grant.on))


Properties = Mapping[str, Any]


def _any_document(subject: str, properties: Properties, _: str) -> Iterator[Grant]:
    """Of a type without a reader of its own: whatever looks like a policy in it."""
    for found in _deep(properties):
        if "Statement" in found:
            yield from (replace(grant, own=True) for grant in _statements(subject, found))


def _role(subject: str, properties: Properties, _: str) -> Iterator[Grant]:
    yield from _statements(subject, properties.get("AssumeRolePolicyDocument"))
    for arn in properties.get("ManagedPolicyArns", ()):
        yield Grant(subject, f"managed policy {arn}")
    for policy in properties.get("Policies", ()):
        yield from _statements(subject, policy.get("PolicyDocument"))


def _policy(subject: str, properties: Properties, stack: str) -> Iterator[Grant]:
    for owner in [named(stack, role) for role in _list(properties.get("Roles"))] or [subject]:
        yield from _statements(owner, properties.get("PolicyDocument"))


def _document(key: str) -> Callable[[str, Properties, str], Iterator[Grant]]:
    def read(subject: str, properties: Properties, _: str) -> Iterator[Grant]:
        yield from (replace(grant, own=True) for grant in _statements(subject, properties.get(key)))

    return read


def _permission(subject: str, properties: Properties, _: str) -> Iterator[Grant]:
    yield Grant(subject, str(properties.get("Action")), str(properties.get("FunctionName")), by=str(properties.get("Principal")))


def _access_entry(_: str, properties: Properties, stack: str) -> Iterator[Grant]:
    # By who it is, not by which resource says it: entries are numbered, and one more moves those that follow.
    who = str(properties.get("PrincipalArn"))
    subject = f"{stack}/EksAccess:{who}"
    for group in properties.get("KubernetesGroups", ()):
        yield Grant(subject, f"Kubernetes group {group}", by=who)
    for policy in properties.get("AccessPolicies", ()):
        name = str(policy.get("PolicyArn")).rsplit("/", 1)[-1]
        scope = policy.get("AccessScope", {})
        places = [f"namespace {name}" for name in scope.get("Namespaces", ())] if scope.get("Type") == "namespace" else ["*"]
        for place in places:
            yield Grant(subject, name, place, by=who)


def _pod_identity(subject: str, properties: Properties, _: str) -> Iterator[Grant]:
    pods = f"{properties.get('Namespace')}/{properties.get('ServiceAccount')}"
    yield Grant(subject, f"role {properties.get('RoleArn')}", by=f"pods of {pods}")


def _public_block(subject: str, properties: Properties, _: str) -> Iterator[Grant]:
    wanted = properties.get("PublicAccessBlockConfiguration", {})
    for name in ("BlockPublicAcls", "BlockPublicPolicy", "IgnorePublicAcls", "RestrictPublicBuckets"):
        if wanted.get(name) is not True:
            yield Grant(subject, f"public access to the bucket ({name} is off)")


def _endpoint(subject: str, properties: Properties, _: str) -> Iterator[Grant]:
    if "PolicyDocument" not in properties:
        yield Grant(subject, "*", "*", "*", own=True)
    yield from (replace(grant, own=True) for grant in _statements(subject, properties.get("PolicyDocument")))


def _function_address(subject: str, properties: Properties, _: str) -> Iterator[Grant]:
    if properties.get("AuthType") == "NONE":
        yield Grant(subject, "calls over the internet without credentials", str(properties.get("TargetFunctionArn")), "*")


def _subnet(subject: str, properties: Properties, _: str) -> Iterator[Grant]:
    if properties.get("MapPublicIpOnLaunch") in (True, "true"):
        yield Grant(subject, "what starts in it has a public address")


def _domain(subject: str, properties: Properties, _: str) -> Iterator[Grant]:
    if properties.get("AppNetworkAccessType") == "PublicInternetOnly":
        yield Grant(subject, "Studio apps have a way to the internet of their own")


_READERS: Mapping[str, Callable[[str, Properties, str], Iterator[Grant]]] = {
    "AWS::IAM::Role": _role,
    "AWS::IAM::Policy": _policy,
    "AWS::IAM::ManagedPolicy": _policy,
    "AWS::S3::BucketPolicy": _document("PolicyDocument"),
    "AWS::KMS::Key": _document("KeyPolicy"),
    "AWS::ECR::Repository": _document("RepositoryPolicyText"),
    "AWS::SQS::QueuePolicy": _document("PolicyDocument"),
    "AWS::SNS::TopicPolicy": _document("PolicyDocument"),
    "AWS::Lambda::Permission": _permission,
    "AWS::EKS::AccessEntry": _access_entry,
    "AWS::EKS::PodIdentityAssociation": _pod_identity,
    "AWS::S3::Bucket": _public_block,
    "AWS::SageMaker::Domain": _domain,
    "AWS::EC2::VPCEndpoint": _endpoint,
    "AWS::Lambda::Url": _function_address,
    "AWS::EC2::Subnet": _subnet,
}
# What stands in a resource's way lies in another resource: the name of the property that leads there.
_POLICIES = {"AWS::S3::BucketPolicy": "Bucket", "AWS::SQS::QueuePolicy": "Queues", "AWS::SNS::TopicPolicy": "Topics"}


def _statements(subject: str, document: Any) -> Iterator[Grant]:
    for statement in _list(document.get("Statement") if isinstance(document, Mapping) else None):
        if not isinstance(statement, Mapping) or statement.get("Effect") != "Allow":
            continue
        condition = json.dumps(statement["Condition"], sort_keys=True) if statement.get("Condition") else ""
        # What is said by exception allows more than it names: only the very same statement covers it.
        actions = _list(statement.get("Action")) or [f"all but {shown(statement.get('NotAction'))}"]
        resources = _list(statement.get("Resource")) or (
            [f"all but {shown(statement['NotResource'])}"] if "NotResource" in statement else [""]
        )
        for action in actions:
            for resource in resources:
                for who in _principals(statement):
                    yield Grant(subject, str(action), str(resource), who, condition)


def _principals(statement: Mapping[str, Any]) -> list[str]:
    if "NotPrincipal" in statement:
        return [f"everybody but {shown(statement['NotPrincipal'])}"]
    principal = statement.get("Principal")
    if isinstance(principal, Mapping):
        return [str(who) for kind in principal.values() for who in _list(kind)]
    return [str(who) for who in _list(principal)] or [""]


def _gone_denials(base: Side, head: Side) -> Iterator[tuple[str, str]]:
    """A Deny or a boundary that is no longer there allows what it kept out; where its resource is gone, nothing is left to keep out of."""
    after, there = _denials(head), _resources(head)
    for (subject, text), sentence in _denials(base).items():
        if (subject, text) not in after and subject in there:
            yield subject, sentence


def _denials(side: Side) -> dict[tuple[str, str], str]:
    """What each resource is kept from, by the resource: a bucket's policy counts with the bucket, a role's with the role."""
    found: dict[tuple[str, str], str] = {}
    for stack in side.stacks:
        for logical, body in stack.resources.items():
            properties = plain(body.get("Properties", {}))
            protects = _POLICIES.get(str(body.get("Type")), "Roles" if str(body.get("Type")) in _FOR_ROLES else "")
            subjects = [named(stack.name, each) for each in _list(properties.get(protects))] or [f"{stack.name}/{logical}"]
            for statement in _deep(properties):
                if statement.get("Effect") == "Deny":
                    unless = f" if {shown(statement['Condition'])}" if statement.get("Condition") else ""
                    said = f"no longer denied: {shown(statement.get('Action'))} on {shown(statement.get('Resource'))}{unless}"
                    found |= {(subject, json.dumps(statement, sort_keys=True)): said for subject in subjects}
            if boundary := properties.get("PermissionsBoundary"):
                found[(f"{stack.name}/{logical}", f"boundary {boundary}")] = f"no longer bounded by {shown(boundary)}"
    return found


def _deep(value: Any) -> Iterator[Mapping[str, Any]]:
    if isinstance(value, Mapping):
        yield value
        for item in value.values():
            yield from _deep(item)
    elif isinstance(value, list):
        for item in value:
            yield from _deep(item)


def _list(value: Any) -> list[Any]:
    return [] if value is None else list(value) if isinstance(value, list) else [value]
