"""Custom resources run as real Lambda code, and one whose code dies fails at once instead of hanging for an hour."""

from __future__ import annotations

import json
import time

import pytest

from tests.local.cloud.conftest import Account, Refused, Template, get, resource, role

pytestmark = pytest.mark.cloud

ANSWER = """
import json, urllib.request, boto3
def handler(event, context):
    region = boto3.client("sts").get_caller_identity()["Account"]
    body = {"Status": "SUCCESS", "PhysicalResourceId": "mine", "StackId": event["StackId"], "RequestId": event["RequestId"],
            "LogicalResourceId": event["LogicalResourceId"], "Data": {"Account": region}}
    request = urllib.request.Request(event["ResponseURL"], data=json.dumps(body).encode(), method="PUT")
    urllib.request.urlopen(request).read()
"""


def _function(code: str, runtime: str, handler: str) -> Template:
    return {
        "Role": role("lambda.amazonaws.com"),
        "Function": resource(
            "AWS::Lambda::Function", Runtime=runtime, Handler=handler, Role=get("Role", "Arn"), Timeout=20, Code={"ZipFile": code}
        ),
        "Mine": resource("Custom::Mine", ServiceToken=get("Function", "Arn")),
    }


def test_a_python_handler_runs_with_boto3(account: Account) -> None:
    made = account.deploy("python", _function(ANSWER, "python3.13", "index.handler"), {"Account": get("Mine", "Account")})
    assert made["Account"] == "000000000000"


@pytest.mark.parametrize(
    ("code", "runtime", "reason"),
    [
        ("def handler(event, context):\n    raise ValueError('broken')", "python3.13", "broken"),
        ("const c = require('@aws-sdk/client-s3'); exports.handler = async () => c;", "nodejs24.x", "@aws-sdk/client-s3"),
    ],
)
def test_a_handler_that_dies_fails_the_stack_soon(code: str, runtime: str, reason: str, account: Account) -> None:
    begun = time.monotonic()
    with pytest.raises(Refused, match="The Lambda function failed") as failure:
        account.deploy("dies", _function(code, runtime, "index.handler"))
    assert reason in failure.value.reasons
    assert time.monotonic() - begun < 30


STARTS = """
import boto3, json, os, time
def handler(event, context):
    asked = json.dumps({**event, "Began": str(time.time())})
    boto3.client("stepfunctions").start_execution(stateMachineArn=os.environ["MACHINE"], input=asked)
"""

WAITS = """
import json, time, urllib.request
def handler(asked, context):
    event, retries = asked["event"], asked["retries"]
    if retries < 2:
        raise RuntimeError("not yet")
    waited = time.time() - float(asked["Began"])
    body = {"Status": "SUCCESS", "PhysicalResourceId": "mine", "StackId": event["StackId"], "RequestId": event["RequestId"],
            "LogicalResourceId": event["LogicalResourceId"], "Data": {"Retries": str(retries), "Waited": str(waited)}}
    request = urllib.request.Request(event["ResponseURL"], data=json.dumps(body).encode(), method="PUT")
    urllib.request.urlopen(request).read()
"""


def test_a_waiter_that_fails_to_be_called_again_is_not_taken_for_dead(account: Account) -> None:
    """CDK's provider framework waits so: a state machine calls a function until it no longer raises."""
    name = "arn:aws:states:us-west-2:000000000000:stateMachine:waiter"
    retry = {"ErrorEquals": ["States.ALL"], "IntervalSeconds": 30, "MaxAttempts": 5, "BackoffRate": 1}
    asked = {"event.$": "$", "retries.$": "$$.State.RetryCount", "Began.$": "$.Began"}
    ask = {"Type": "Task", "End": True, "Resource": "${F}", "Parameters": asked, "Retry": [retry]}
    machine = {"StartAt": "Ask", "States": {"Ask": ask}}
    template = {
        **_function(STARTS, "python3.13", "index.handler"),
        "Waits": resource(
            "AWS::Lambda::Function",
            Runtime="python3.13",
            Handler="index.handler",
            Role=get("Role", "Arn"),
            Timeout=20,
            Code={"ZipFile": WAITS},
        ),
        "Machine": resource(
            "AWS::StepFunctions::StateMachine",
            StateMachineName="waiter",
            RoleArn=get("Role", "Arn"),
            DefinitionString={"Fn::Sub": [json.dumps(machine), {"F": get("Waits", "Arn")}]},
        ),
    }
    template["Role"] = role("lambda.amazonaws.com", actions=("states:StartExecution", "lambda:InvokeFunction"))
    template["Function"]["Properties"]["Environment"] = {"Variables": {"MACHINE": name}}
    template["Mine"]["DependsOn"] = ["Machine"]
    begun = time.monotonic()
    made = account.deploy("waits", template, {name: get("Mine", name) for name in ("Retries", "Waited")})
    assert made["Retries"] == "2"
    assert float(made["Waited"]) >= 60, "the function must see the time that its state machine would have waited"
    assert time.monotonic() - begun < 30, "two waits of 30 s must be shortened"
