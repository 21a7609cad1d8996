"""What the account itself says: which resources were changed beside CloudFormation, and what CloudFormation would do with the head.

Drift detection changes nothing. A change set is made by the CDK CLI (which uploads templates and takes the bootstrap roles, as a deploy
does), read, and deleted again, whatever happens in between; only for stacks that exist and were made from another template: for a stack
that does not exist a change set would leave an empty one behind.
"""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

from config.load import ROOT
from config.problems import Failed, Unreachable
from operations.review.compare import Review
from operations.review.effects import DATA
from operations.review.risks import NEVER_REPLACED, Risk, accepted, hints
from operations.review.sides import Side, StackTemplate

CHANGE_SET = "hyperpod-rl-review"
POLL_SECONDS, DRIFT_TIMEOUT_SECONDS, DEPLOY_TIMEOUT_SECONDS = 2.0, 600.0, 1200
# Where CloudFormation takes a change set, and where it also looks for drift. Of a stack that failed to be made the CDK CLI deletes what
# is left before it makes one, which nobody asked a review to do.
_WHOLE = frozenset({"CREATE_COMPLETE", "UPDATE_COMPLETE", "UPDATE_ROLLBACK_COMPLETE", "IMPORT_COMPLETE", "IMPORT_ROLLBACK_COMPLETE"})
_LOOKED_AT = _WHOLE | {"UPDATE_ROLLBACK_FAILED"}


@dataclass(frozen=True)
class Found:
    """What the account says of one stack: lines for people, risks that the templates alone do not show, what it does not say.

    `differs`: whether a deploy would change it.
    """

    lines: tuple[str, ...] = ()
    risks: tuple[Risk, ...] = ()
    unseen: tuple[str, ...] = ()
    differs: bool = False


def look(
    review: Review, head: Side, cloudformation: Any, *, prepare: Callable[[Sequence[str]], None], text: str = "",
    sleep: Callable[[float], None] = time.sleep,
) -> Review:  # fmt: skip
    """The review with drift and change sets in it.

    `cloudformation` is a boto3 client; `prepare` makes the change set `CHANGE_SET` for each of the named stacks of the assembly, and raises
    Failed or Unreachable. What CloudFormation or the CDK CLI refuses is in `unseen`; the rest is there.
    """
    found, existing = [], []
    for stack in head.stacks:
        each = _guarded(partial(_look, cloudformation, stack, sleep), f"{stack.name}: its state and its drift")
        found.append(each)
        if each.differs:
            existing.append(stack)
    if existing:
        what = f"{', '.join(stack.name for stack in existing)}: the change sets"
        known = {risk.id for risk in review.risks}
        found.append(_guarded(lambda: _change_sets(cloudformation, existing, prepare, known=known), what))
    every = (*review.risks, *accepted([risk for each in found for risk in each.risks], text))
    return replace(
        review, live=tuple(line for each in found for line in each.lines), risks=every, hints=hints(list(every), text),
        unseen=tuple(said for each in found for said in each.unseen),
    )  # fmt: skip


def _guarded(ask: Callable[[], Found], what: str) -> Found:
    from botocore.exceptions import BotoCoreError, ClientError

    try:
        return ask()
    except ClientError as error:
        detail = error.response.get("Error", {})
        said = f"{error.operation_name}: {detail.get('Code', 'error')}, {detail.get('Message', 'no reason given')}"
    except (BotoCoreError, Failed, Unreachable) as error:
        said = str(error)
    return Found(unseen=(f"{what} are not known: {said.rstrip('.')}",))


def _look(cloudformation: Any, stack: StackTemplate, sleep: Callable[[float], None]) -> Found:
    status = _status(cloudformation, stack.stack_name)
    if status is None:
        return Found((f"{stack.name}: not deployed",))
    if status not in _LOOKED_AT:
        return Found((f"{stack.name}: {status}, so nothing can be asked of it now",))
    found = _drift(cloudformation, stack, sleep)
    return replace(found, differs=status in _WHOLE and _differs(cloudformation, stack))


def _status(cloudformation: Any, stack: str) -> str | None:
    from botocore.exceptions import ClientError

    try:
        return str(cloudformation.describe_stacks(StackName=stack)["Stacks"][0]["StackStatus"])
    except ClientError as error:
        if "does not exist" in str(error):
            return None
        raise


def _differs(cloudformation: Any, stack: StackTemplate) -> bool:
    """Whether what is deployed was made from another template: whatever the base of the review is, this is what a deploy changes."""
    deployed = cloudformation.get_template(StackName=stack.stack_name, TemplateStage="Original")["TemplateBody"]
    with contextlib.suppress(ValueError):  # YAML is not ours, so it differs
        return bool((json.loads(deployed) if isinstance(deployed, str) else deployed) != stack.template)
    return True


def _drift(cloudformation: Any, stack: StackTemplate, sleep: Callable[[float], None]) -> Found:
    detection = cloudformation.detect_stack_drift(StackName=stack.stack_name)["StackDriftDetectionId"]
    waited = 0.0
    while True:
        answer = cloudformation.describe_stack_drift_detection_status(StackDriftDetectionId=detection)
        if answer["DetectionStatus"] != "DETECTION_IN_PROGRESS":
            break
        if waited >= DRIFT_TIMEOUT_SECONDS:
            raise Failed(f"drift detection of {stack.stack_name} has not ended after {DRIFT_TIMEOUT_SECONDS:.0f} s; run the command again")
        sleep(POLL_SECONDS)
        waited += POLL_SECONDS
    lines = [f"{stack.name}: drift {answer.get('StackDriftStatus', 'UNKNOWN')}"]
    if answer["DetectionStatus"] == "DETECTION_FAILED":
        lines[0] += f" (of some resources: {answer.get('DetectionStatusReason', 'no reason given')})"
    risks = []
    for logical, what in _drifted(cloudformation, stack.stack_name):
        lines.append(f"{stack.name}/{logical}: {what}")
        risks.append(Risk(f"drift:{stack.name}/{logical}", f"it is not as CloudFormation left it: {what}; a deploy may undo that, or fail"))
    return Found(tuple(lines), tuple(risks))


def _drifted(cloudformation: Any, stack: str) -> Iterator[tuple[str, str]]:
    more: dict[str, str] = {}
    while True:
        page = cloudformation.describe_stack_resource_drifts(
            StackName=stack, StackResourceDriftStatusFilters=["MODIFIED", "DELETED"], **more
        )
        for each in page.get("StackResourceDrifts", ()):
            if each["StackResourceDriftStatus"] == "DELETED":
                yield each["LogicalResourceId"], "somebody deleted it"
            else:
                parts = [f"{p['PropertyPath']} {p.get('ExpectedValue')} -> {p.get('ActualValue')}" for p in each["PropertyDifferences"]]
                yield each["LogicalResourceId"], "; ".join(parts)
        if not page.get("NextToken"):
            return
        more = {"NextToken": page["NextToken"]}


def _change_sets(cloudformation: Any, stacks: Sequence[StackTemplate], prepare: Callable[[Sequence[str]], None], known: set[str]) -> Found:
    try:
        prepare([stack.name for stack in stacks])
        made = [_change_set(cloudformation, stack, known) for stack in stacks]
        return Found(tuple(line for each in made for line in each.lines), tuple(risk for each in made for risk in each.risks))
    finally:
        for stack in stacks:
            with contextlib.suppress(cloudformation.exceptions.ChangeSetNotFoundException):
                cloudformation.delete_change_set(StackName=stack.stack_name, ChangeSetName=CHANGE_SET)


def _change_set(cloudformation: Any, stack: StackTemplate, known: set[str]) -> Found:
    changes: list[Any] = []
    more: dict[str, str] = {}
    try:
        while True:
            page = cloudformation.describe_change_set(StackName=stack.stack_name, ChangeSetName=CHANGE_SET, **more)
            changes += page.get("Changes", ())
            if not page.get("NextToken"):
                break
            more = {"NextToken": page["NextToken"]}
    except cloudformation.exceptions.ChangeSetNotFoundException:
        return Found((f"{stack.name}: the change set is empty",))  # the CDK CLI deletes an empty one
    lines, risks = [f"{stack.name}: change set of {len(changes)} changes"], []
    for change in changes:
        each = change["ResourceChange"]
        replaced = each.get("Replacement", "False")
        word = {"True": "replaces", "Conditional": "perhaps replaces"}.get(str(replaced), str(each["Action"]).lower())
        lines.append(f"{stack.name}/{each['LogicalResourceId']}: {word} {each['ResourceType']}")
        name = f"replace:{stack.name}/{each['LogicalResourceId']}"
        if str(replaced) == "True" and name not in known and each["ResourceType"] in (*NEVER_REPLACED, *DATA):
            risks.append(Risk(name, f"CloudFormation would replace {each['ResourceType']}, which the templates alone do not tell"))
    return Found(tuple(lines), tuple(risks))


def prepare(assembly: Path, stacks: Sequence[str]) -> None:
    """Let the CDK CLI make the change sets. Raises Failed with what it said, Unreachable if it is not there."""
    command = [
        "cdk", "deploy", *stacks, "--exclusively", "--app", str(assembly), "--method", "prepare-change-set",
        "--change-set-name", CHANGE_SET, "--require-approval", "never", "--force", "--progress", "events",
    ]  # fmt: skip
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ.get('PATH', '')}"
    try:
        done = subprocess.run(
            command, cwd=ROOT, env={**os.environ, "PATH": path}, text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
            timeout=DEPLOY_TIMEOUT_SECONDS, check=False, stdin=subprocess.DEVNULL,
        )  # fmt: skip
    except FileNotFoundError:
        raise Unreachable("cdk is not there: run `make setup`, then `source .venv/bin/activate`") from None
    except subprocess.TimeoutExpired:
        raise Failed(f"cdk took longer than {DEPLOY_TIMEOUT_SECONDS} s to prepare the change sets") from None
    if done.returncode:
        said = " / ".join(line.strip() for line in done.stdout.splitlines() if line.strip())[-800:]
        raise Failed(f"the change sets cannot be prepared: {said}")
