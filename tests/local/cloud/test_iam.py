"""IAM, enforced: a role may do what its policies say, in ministack's services and in ours, and nobody else may take its place."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import boto3
import pytest
from botocore.config import Config
from botocore.credentials import ContainerProvider
from botocore.exceptions import ClientError, CredentialRetrievalError

from local import lifecycle
from local.cloud.services import pod_identity
from tests.local.cloud.conftest import Account, Template, eks, get, ref, resource, role

pytestmark = pytest.mark.cloud
ARN = "arn:aws:eks:us-west-2:000000000000:cluster/tests"
READS = {"Statement": [{"Effect": "Allow", "Action": ["fsx:DescribeFileSystems", "s3:ListAllMyBuckets"], "Resource": "*"}]}


def _trust(condition: Template) -> Template:
    statement = {"Effect": "Allow", "Principal": {"Service": "pods.eks.amazonaws.com"}, "Action": ["sts:AssumeRole", "sts:TagSession"]}
    return {"Statement": [{**statement, **({"Condition": condition} if condition else {})}]}


def _pod(condition: Template, policy: Template = READS) -> Template:
    policies = [{"PolicyName": "p", "PolicyDocument": policy}]
    return {
        **eks(),
        "Pod": resource("AWS::IAM::Role", AssumeRolePolicyDocument=_trust(condition), Policies=policies),
        "Identity": resource(
            "AWS::EKS::PodIdentityAssociation", ClusterName=ref("Eks"), Namespace="default", ServiceAccount="pod", RoleArn=get("Pod", "Arn")
        ),
    }


@pytest.fixture
def pod(account: Account) -> Callable[..., Any]:
    """A client with the credentials that a pod's SDK gets."""

    def client(service: str) -> Any:
        running = lifecycle.status()
        assert running.ports is not None
        variables = pod_identity.environment(running.ports.cloud, cluster="tests", namespace="default", service_account="pod")
        credentials = ContainerProvider(environ=variables).load()
        assert credentials is not None
        found = credentials.get_frozen_credentials()
        session = boto3.Session(found.access_key, found.secret_key, found.token, region_name="us-west-2")
        return session.client(service, endpoint_url=account.endpoint, config=Config(retries={"total_max_attempts": 1}))

    return client


def _code(call: Callable[[], object]) -> str:
    with pytest.raises(ClientError) as error:
        call()
    return str(error.value.response["Error"]["Code"])


def test_a_pod_may_do_what_its_roles_policies_say_in_every_service(account: Account, pod: Callable[..., Any]) -> None:
    account.deploy("pod", _pod({}))
    assert pod("s3").list_buckets()["ResponseMetadata"]["HTTPStatusCode"] == 200
    assert pod("fsx").describe_file_systems()["FileSystems"] == []
    assert _code(lambda: pod("fsx").create_backup(FileSystemId="fs-0123456789abcdef0")) == "AccessDeniedException"
    assert _code(lambda: pod("sagemaker").list_clusters()) == "AccessDeniedException"
    assert _code(lambda: pod("ec2").describe_instance_type_offerings()) == "UnauthorizedOperation"
    assert _code(lambda: pod("iam").list_roles()) == "AccessDenied"


def test_a_call_about_one_resource_is_judged_by_its_arn(account: Account, pod: Callable[..., Any]) -> None:
    one = "arn:aws:sagemaker:us-west-2:000000000000:cluster/mine"
    account.deploy("pod", _pod({}, {"Statement": [{"Effect": "Allow", "Action": "sagemaker:DescribeCluster", "Resource": one}]}))
    assert _code(lambda: pod("sagemaker").describe_cluster(ClusterName="mine")) == "ResourceNotFound"
    assert _code(lambda: pod("sagemaker").describe_cluster(ClusterName="other")) == "AccessDeniedException"


@pytest.mark.parametrize(
    ("condition", "allowed"),
    [
        ({"StringEquals": {"aws:SourceAccount": "000000000000"}, "ArnEquals": {"aws:SourceArn": ARN}}, True),
        ({"ArnEquals": {"aws:SourceArn": ARN.replace("tests", "another")}}, False),
        ({"StringEquals": {"aws:SourceAccount": "111122223333"}}, False),
    ],
)
def test_a_role_is_given_to_the_cluster_that_it_trusts(
    account: Account, pod: Callable[..., Any], condition: Template, allowed: bool
) -> None:
    account.deploy("pod", _pod(condition))
    if allowed:
        assert pod("sts").get_caller_identity()["Arn"].endswith("/eks-tests-pod")
        return
    with pytest.raises(CredentialRetrievalError, match="EKS does not have permissions to assume"):
        pod("sts")


def test_a_function_runs_with_its_own_role(account: Account) -> None:
    """The handler of a custom resource that may list buckets, and then one that may not."""
    code = (
        "import json, urllib.request, boto3\n"
        "def handler(event, context):\n"
        "    boto3.client('s3').list_buckets()\n"
        "    names = ('StackId', 'RequestId', 'LogicalResourceId')\n"
        "    body = {'Status': 'SUCCESS', 'PhysicalResourceId': 'mine', **{name: event[name] for name in names}}\n"
        "    urllib.request.urlopen(urllib.request.Request(event['ResponseURL'], json.dumps(body).encode(), method='PUT')).read()\n"
    )

    def template(*actions: str) -> Template:
        function = resource(
            "AWS::Lambda::Function",
            Runtime="python3.14",
            Handler="index.handler",
            Role=get("Role", "Arn"),
            Timeout=20,
            Code={"ZipFile": code},
        )
        mine = resource("Custom::Mine", ServiceToken=get("Function", "Arn"))
        return {"Role": role("lambda.amazonaws.com", actions=actions), "Function": function, "Mine": mine}

    from tests.local.cloud.conftest import Refused

    account.deploy("may", template("s3:ListAllMyBuckets"))
    with pytest.raises(Refused, match="not authorized to perform: s3:ListAllMyBuckets"):
        account.deploy("may-not", template("s3:GetObject"))


def test_an_accounts_own_key_may_do_everything_and_a_forged_session_nothing(account: Account) -> None:
    assert account.client("iam").list_roles()["ResponseMetadata"]["HTTPStatusCode"] == 200
    forged = boto3.Session("ASIA0123456789ABCDEF", "secret", "token", region_name="us-west-2")
    for service, call in (("s3", "list_buckets"), ("sagemaker", "list_clusters")):
        assert _code(getattr(forged.client(service, endpoint_url=account.endpoint), call)) in (
            "InvalidAccessKeyId", "InvalidClientTokenId", "AccessDeniedException", "UnrecognizedClientException",
        )  # fmt: skip
