"""Answers CloudFormation for a custom resource whose function does its work itself, without CDK's provider framework."""

from __future__ import annotations

import json
import logging
import urllib.request
from collections.abc import Callable, Mapping
from typing import Any

LOG = logging.getLogger()
LOG.setLevel(logging.INFO)
# CloudFormation refuses an answer above 4 KiB: https://docs.aws.amazon.com/AWSCloudFormation/latest/UserGuide/crpg-ref-responses.html
LONGEST_REASON = 1500
Work = Callable[[Mapping[str, Any]], tuple[str, Mapping[str, Any]]]


def answering(work: Work) -> Callable[[Mapping[str, Any], object], None]:
    """A Lambda handler around `work`, which returns the physical id and the attributes or raises with what went wrong.

    Whatever happens CloudFormation gets an answer; without one it waits until the resource's timeout.
    """

    def handler(event: Mapping[str, Any], _context: object) -> None:
        LOG.info(
            "%s %s %s",
            event["RequestType"],
            event["LogicalResourceId"],
            json.dumps(event.get("ResourceProperties", {}), default=str)[:2000],
        )
        physical_id = event.get("PhysicalResourceId") or event["LogicalResourceId"]
        try:
            physical_id, data = work(event)
            _answer(event, {"Status": "SUCCESS", "PhysicalResourceId": physical_id, "Data": dict(data)})
        except Exception as error:  # the answer is the only way to tell CloudFormation
            LOG.exception("failed")
            reason = (str(error) or type(error).__name__)[:LONGEST_REASON]
            _answer(event, {"Status": "FAILED", "PhysicalResourceId": physical_id, "Reason": reason})

    return handler


def _answer(event: Mapping[str, Any], body: Mapping[str, Any]) -> None:
    text = json.dumps(
        {**body, "StackId": event["StackId"], "RequestId": event["RequestId"], "LogicalResourceId": event["LogicalResourceId"]}
    )
    request = urllib.request.Request(event["ResponseURL"], data=text.encode(), method="PUT", headers={"Content-Type": ""})  # noqa: S310 - a pre-signed URL
    with urllib.request.urlopen(request, timeout=30):  # noqa: S310
        LOG.info("answered %s", body["Status"])
