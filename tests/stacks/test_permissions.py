"""Every `Resource: "*"` and every wildcard action of our roles stands in one short list, with its reason."""

from __future__ import annotations

from collections.abc import Iterator

from tests.stacks.assembly import Assembly

# Action -> why no resource can be named. Reasons are AWS's service authorization reference.
EVERYWHERE = {
    "aps:ListWorkspaces": "a list names no workspace",
    "cloudwatch:DescribeAlarms": "no resource",
    "cloudwatch:GetMetricData": "no resource",
    "cloudwatch:ListMetrics": "no resource",
    "tag:GetResources": "no resource",
    "ec2:DescribeDhcpOptions": "no resource",
    "ec2:DescribeInstanceTypes": "no resource",
    "ec2:DescribeInstances": "no resource",
    "ec2:DescribeNetworkInterfaces": "no resource",
    "ec2:DescribeSecurityGroups": "no resource",
    "ec2:DescribeSubnets": "no resource",
    "ec2:DescribeTags": "no resource",
    "ec2:DescribeVpcs": "no resource",
    "ecr:GetAuthorizationToken": "no resource",
    "fsx:DescribeBackups": "no resource",
    "logs:GetLogRecord": "no resource",
    "logs:GetQueryResults": "no resource",
    "logs:StopQuery": "no resource",
    "sagemaker:ListClusters": "a list names no cluster",
}


def statements(assembly: Assembly) -> Iterator[tuple[str, list[str], list[object]]]:
    """(role or policy, actions, resources) of every Allow statement of the assembly's identities."""
    for kind in ("AWS::IAM::Role", "AWS::IAM::Policy"):
        for name, body in assembly.resources(kind).items():
            properties = body["Properties"]
            documents = [policy["PolicyDocument"] for policy in properties.get("Policies", [])]
            if kind == "AWS::IAM::Policy":
                documents.append(properties["PolicyDocument"])
            for document in documents:
                for statement in document["Statement"]:
                    actions, resources = statement["Action"], statement["Resource"]
                    yield (
                        name,
                        actions if isinstance(actions, list) else [actions],
                        resources if isinstance(resources, list) else [resources],
                    )


def test_every_wildcard_resource_is_in_the_list(assembly: Assembly) -> None:
    open_to_all = {action for _, actions, resources in statements(assembly) for action in actions if "*" in resources}
    assert open_to_all - set(EVERYWHERE) == set()


def test_no_action_is_a_wildcard(assembly: Assembly) -> None:
    assert [(name, action) for name, actions, _ in statements(assembly) for action in actions if "*" in action] == []


def test_no_role_has_a_managed_policy_beyond_the_few_that_services_ask_for(assembly: Assembly) -> None:
    allowed = {
        "AmazonSageMakerClusterInstanceRolePolicy",
        "AmazonEKSClusterPolicy",
        "AmazonEC2ContainerRegistryReadOnly",
        "AmazonElasticContainerRegistryPublicReadOnly",
        "service-role/AWSLambdaBasicExecutionRole",
        "service-role/AWSLambdaVPCAccessExecutionRole",
    }
    import json

    for name, body in assembly.resources("AWS::IAM::Role").items():
        for policy in body["Properties"].get("ManagedPolicyArns", []):
            text = json.dumps(policy)
            assert any(f"policy/{known}" in text for known in allowed), f"{name}: {text}"
