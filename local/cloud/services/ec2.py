"""EC2: the one call that ministack lacks, instance types by zone.

https://docs.aws.amazon.com/AWSEC2/latest/APIReference/API_DescribeInstanceTypeOfferings.html
"""

from __future__ import annotations

from typing import Any
from xml.sax.saxutils import escape

from local.cloud import REGION
from local.cloud.store import Cloud
from local.cloud.wire import Answer, Operation


def describe_offerings(cloud: Cloud, given: dict[str, Any]) -> Answer:
    """Every type that HyperPod takes, in every zone: this cloud is never out of a type, unless a fault switch says so."""
    from local.cloud.services.quotas import _instance_types

    kind = given.get("LocationType", "region")
    zones = cloud.client("ec2").describe_availability_zones()["AvailabilityZones"]
    places = {
        "region": [REGION],
        "availability-zone": [z["ZoneName"] for z in zones],
        "availability-zone-id": [z["ZoneId"] for z in zones],
    }.get(str(kind), [REGION])
    filters = _filters(given)
    types = [t.removeprefix("ml.") for t in _instance_types()]
    items = "".join(
        f"<item><instanceType>{escape(t)}</instanceType><locationType>{kind}</locationType><location>{p}</location></item>"
        for t in types
        for p in places
        if t in filters.get("instance-type", [t]) and p in filters.get("location", [p])
    )
    namespace = "http://ec2.amazonaws.com/doc/2016-11-15/"
    name = "DescribeInstanceTypeOfferingsResponse"
    body = f'<{name} xmlns="{namespace}"><requestId>local</requestId><instanceTypeOfferingSet>{items}</instanceTypeOfferingSet></{name}>'
    return {"xml": body.encode()}


def _filters(given: dict[str, Any]) -> dict[str, list[str]]:
    found: dict[str, list[str]] = {}
    for number in range(1, 100):
        name = given.get(f"Filter.{number}.Name")
        if name is None:
            break
        values = [v for k, v in given.items() if k.startswith(f"Filter.{number}.Value.")]
        found[str(name)] = values
    return found


OPERATIONS: dict[str, Operation] = {"DescribeInstanceTypeOfferings": describe_offerings}
