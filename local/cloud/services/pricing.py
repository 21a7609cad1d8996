"""Price List: https://docs.aws.amazon.com/awsaccountbilling/latest/aboutv2/price-changes.html

Three prices only, each with the certainty that it has; for every other product the answer is empty, and a caller that
wants a price has to say that it has none.
"""

from __future__ import annotations

import json
from typing import Any

from local.cloud import REGION
from local.cloud.store import Cloud
from local.cloud.wire import Answer, Operation

# service code, attributes, unit, USD
_PRICES: tuple[tuple[str, dict[str, str], str, str], ...] = (
    # Price List of us-west-2, effective 2026-09-01, component Studio; that HyperPod costs the same is inferred.
    ("AmazonSageMaker", {"instanceName": "ml.g7e.12xlarge", "component": "Cluster", "regionCode": REGION}, "Hrs", "10.3576"),
    # EC2's 4.608 USD/h times the 1.25 between the two services for g7e.12xlarge: unverified.
    ("AmazonSageMaker", {"instanceName": "ml.r5d.16xlarge", "component": "Cluster", "regionCode": REGION}, "Hrs", "5.76"),
    ("AmazonEKS", {"operation": "CreateOperation", "regionCode": REGION}, "Hrs", "0.10"),
)


def get_products(cloud: Cloud, given: dict[str, Any]) -> Answer:
    wanted = {f["Field"]: f["Value"] for f in given.get("Filters", [])}
    found = []
    for number, (service, attributes, unit, price) in enumerate(_PRICES):
        known = {**attributes, "ServiceCode": service}
        if service != given.get("ServiceCode") or any(known.get(k) != v for k, v in wanted.items()):
            continue
        dimension = {"unit": unit, "pricePerUnit": {"USD": price}, "description": "local cloud"}
        found.append(
            json.dumps(
                {
                    "product": {"sku": f"LOCAL{number}", "attributes": attributes},
                    "serviceCode": service,
                    "terms": {"OnDemand": {f"LOCAL{number}.T": {"priceDimensions": {f"LOCAL{number}.T.D": dimension}}}},
                }
            )
        )
    return {"FormatVersion": "aws_v1", "PriceList": found}


OPERATIONS: dict[str, Operation] = {"GetProducts": get_products}
