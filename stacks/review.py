"""AWS's own checks (cdk-nag, pack AwsSolutions), and every finding that is accepted, resource by resource, with its reason.

They run in the tests and with `cdk synth -c nag=true`, which refuses a template with any other finding. A role of ours brings the
reason of each wildcard with it (`Allow.why`) and that of each managed policy (`roles.MANAGED`); what CDK makes by itself is below.
cdk-nag 3 is a validation plugin, no longer an Aspect: https://github.com/cdklabs/cdk-nag/blob/main/README.md
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Any

from aws_cdk import Acknowledgment, App, CfnResource, Validations
from aws_cdk import aws_codebuild as codebuild
from aws_cdk import aws_iam as iam
from aws_cdk import aws_lambda as lambda_
from aws_cdk import aws_s3 as s3
from aws_cdk import aws_stepfunctions as stepfunctions
from constructs import IConstruct

from stacks.allow import Allow
from stacks.roles import MANAGED
from stacks.stack import EnvironmentStack

PACK = "AwsSolutions"


@dataclass(frozen=True)
class Accepted:
    """A finding on one resource. `path` is a construct path in which `*` stands for any text."""

    path: str
    finding: str
    why: str


# Findings that do not lie in a policy.
RESOURCES = (
    Accepted("Data/Artifacts/Resource", "S1", "who read an object is CloudTrail's to say; a log bucket would need one of its own"),
    Accepted("HyperPod/Scripts/Resource", "S1", "it holds one script that the nodes read when they start"),
    Accepted("*/ImageProject", "CB4", "it keeps no artifact and no cache that a key could protect; ECR encrypts what it pushes"),
    Accepted("*/MirrorProject", "CB4", "it keeps no artifact and no cache that a key could protect; ECR encrypts what it pushes"),
    Accepted("*/ChartsProject", "CB4", "it keeps no artifact and no cache that a key could protect; ECR encrypts what it pushes"),
    Accepted("*/KubectlProvider/Handler/Resource", "L1", "the runtime is that of CDK's own handler"),
    Accepted("*/waiter-state-machine/Resource", "SF1", "CDK's provider logs its errors; every poll beside them says nothing new"),
    Accepted("*/waiter-state-machine/Resource", "SF2", "two functions in turn, each with its log: there is nothing to trace"),
)
# Wildcards in the policies of what CDK makes.
POLICIES = (
    Accepted("*/framework-*/ServiceRole/DefaultPolicy/Resource", "IAM5", "`:*` are the versions of the function that the framework calls"),
    Accepted("*/waiter-state-machine/Role/DefaultPolicy/Resource", "IAM5", "`:*` are the versions of the framework's own functions"),
)


def review(app: App, stacks: Sequence[EnvironmentStack]) -> None:
    """Register the checks for the app's synthesis and acknowledge what is accepted. Synthesis then fails on anything else."""
    # A kernel of its own is loaded for this package: only when it is asked for.
    from cdk_nag import AwsSolutionsChecks

    for stack in stacks:
        for construct in stack.node.find_all():
            found = sorted(_accepted(stack, construct), key=lambda pair: pair[0])
            if found:
                Validations.of(construct).acknowledge(
                    *(Acknowledgment(id=f"{PACK}::{PACK}-{finding}", reason=why) for finding, why in found)
                )
    Validations.of(app).add_plugins(AwsSolutionsChecks(app))


def _accepted(stack: EnvironmentStack, construct: IConstruct) -> set[tuple[str, str]]:
    """Findings on one resource that have a reason, as (id without the pack, reason)."""
    if not CfnResource.is_cfn_resource(construct):
        return set()
    path = construct.node.path
    if isinstance(construct, iam.CfnRole | iam.CfnPolicy):
        return set(_in_policies(stack, construct, path))
    if isinstance(construct, s3.CfnBucket | codebuild.CfnProject | lambda_.CfnFunction | stepfunctions.CfnStateMachine):
        return {(entry.finding, entry.why) for entry in RESOURCES if fnmatchcase(path, entry.path)}
    return set()


def _in_policies(stack: EnvironmentStack, construct: iam.CfnRole | iam.CfnPolicy, path: str) -> Iterator[tuple[str, str]]:
    if isinstance(construct, iam.CfnPolicy):
        documents = [stack.resolve(construct.policy_document)]
        allowed: Sequence[Allow] = ()
    else:
        documents = [policy["policyDocument"] for policy in stack.resolve(construct.policies) or ()]
        allowed = stack.allowed.get(path.removesuffix("/Resource").rpartition("/")[2], ())
        for arn in stack.resolve(construct.managed_policy_arns) or ():
            policy = flat(arn)
            for name, why in MANAGED.items():
                if f":aws:policy/{name}" in policy:
                    yield f"IAM4[Policy::{policy}]", why
    reasons = {resource: entry.why for entry in allowed for text in entry.resources for resource in [flat(stack.resolve(text))]}
    for document in documents:
        for statement in document["Statement"]:
            for resource in _list(statement["Resource"]):
                name = flat(resource)
                why = reasons.get(name) or next((entry.why for entry in POLICIES if fnmatchcase(path, entry.path)), "")
                if "*" in name and why:
                    yield f"IAM5[Resource::{name}]", why


def _list(value: Any) -> list[Any]:
    return value if isinstance(value, list) else [value]


def flat(value: Any) -> str:
    """A resolved value as cdk-nag writes it in the id of a finding: `<Logical.Attribute>` for references, joins joined."""
    if isinstance(value, str):
        return value
    if isinstance(value, Mapping):
        if "Ref" in value:
            return f"<{value['Ref']}>"
        if "Fn::GetAtt" in value:
            return f"<{'.'.join(value['Fn::GetAtt'])}>"
        if "Fn::Join" in value:
            separator, parts = value["Fn::Join"]
            return str(separator).join(flat(part) for part in parts)
    return json.dumps(value, separators=(",", ":"))
