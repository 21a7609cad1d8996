"""What things cost where the Price List API cannot be asked: a dated table, each figure with its source.

USD, us-west-2, on demand, without tax or a contract's discount. `seen` means that a public document shows the figure; `unverified`
that none was read and it is the publicly known EC2 rate times the factor between EC2 and SageMaker. A type that has no row
has no price here, and whoever adds up has to say so. `hyperpod-rl cost` asks the Price List API first.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Literal

TABLE_DATE = "2026-11-29"
TABLE_REGION = "us-west-2"
HOURS_PER_MONTH = 730
Certainty = Literal["seen", "inferred", "unverified"]


@dataclass(frozen=True)
class Price:
    """USD for one unit and one hour."""

    usd_per_hour: float
    source: str
    date: str
    certainty: Certainty

    @property
    def sentence(self) -> str:
        """Where the figure comes from, for people."""
        return f"{self.source}, {self.date}" + ("" if self.certainty == "seen" else f", {self.certainty}")


def _month(usd: float, source: str, certainty: Certainty, date: str = TABLE_DATE) -> Price:
    return Price(usd / HOURS_PER_MONTH, source, date, certainty)


def _family(prefix: str, ec2_rates: Mapping[str, float], *, factor: float) -> dict[str, Price]:
    source = f"EC2 on-demand rate x {factor}"
    return {f"ml.{prefix}.{size}": Price(round(rate * factor, 4), source, TABLE_DATE, "unverified") for size, rate in ec2_rates.items()}


# The factor between ml.g7e.12xlarge (10.3576 in us-west-2) and g7e.12xlarge (8.2861 in us-east-1) is 1.25 exactly; 1.2 is SageMaker's
# usual one for m5. p4d, p5 and p5en have no row: their rates were cut in 2025, by shares that differ between EC2 and SageMaker.
INSTANCES: Mapping[str, Price] = MappingProxyType(
    {
        "ml.g7e.12xlarge": Price(10.3576, "Price List of SageMaker, component Studio (that HyperPod costs the same is inferred)",
                                 "2026-09-01", "inferred"),
        "ml.g7e.24xlarge": Price(20.7152, "twice ml.g7e.12xlarge, as its GPUs", TABLE_DATE, "unverified"),
        "ml.g7e.48xlarge": Price(41.4304, "four times ml.g7e.12xlarge, as its GPUs", TABLE_DATE, "unverified"),
        "ml.r5d.16xlarge": Price(5.76, "EC2 on-demand rate x 1.25", TABLE_DATE, "unverified"),
    }
    | _family("m5", {"large": 0.096, "xlarge": 0.192, "2xlarge": 0.384, "4xlarge": 0.768, "8xlarge": 1.536, "12xlarge": 2.304,
                     "16xlarge": 3.072, "24xlarge": 4.608}, factor=1.2)
    | _family("g5", {"xlarge": 1.006, "2xlarge": 1.212, "4xlarge": 1.624, "8xlarge": 2.448, "12xlarge": 5.672, "16xlarge": 4.096,
                     "24xlarge": 8.144, "48xlarge": 16.288}, factor=1.25)
    | _family("g6", {"xlarge": 0.8048, "2xlarge": 0.9776, "4xlarge": 1.3232, "8xlarge": 2.0144, "12xlarge": 4.6016, "16xlarge": 3.3968,
                     "24xlarge": 6.6752, "48xlarge": 13.3504}, factor=1.25)
    | _family("g6e", {"xlarge": 1.861, "2xlarge": 2.2421, "4xlarge": 3.0042, "8xlarge": 4.5286, "12xlarge": 10.4926, "16xlarge": 7.5772,
                      "24xlarge": 15.0656, "48xlarge": 30.1312}, factor=1.25)
)  # fmt: skip

EKS = Price(0.10, "several public projects' cost tables; 0.60 where the Kubernetes version is in extended support", TABLE_DATE, "seen")
# FSx for Lustre, PERSISTENT_2 on SSD: a GiB by its throughput in MB/s for each TiB.
FILE_SYSTEM_GIB: Mapping[int, Price] = MappingProxyType(
    {
        125: _month(0.145, "https://c3x.dev/resources/aws/aws_fsx_lustre_file_system/ (us-east-1)", "seen"),
        250: _month(0.210, "FSx for Lustre price page", "unverified"),
        500: _month(0.340, "FSx for Lustre price page", "unverified"),
        1000: _month(0.600, "FSx for Lustre price page", "unverified"),
    }
)
NAT_GATEWAY = Price(0.045, "VPC price page; traffic costs 0.045 a GB more", TABLE_DATE, "unverified")
PUBLIC_ADDRESS = Price(0.005, "VPC price page, public IPv4 address", TABLE_DATE, "unverified")
# For each AZ that an interface endpoint has a subnet in.
INTERFACE_ENDPOINT = Price(0.01, "PrivateLink price page; traffic costs 0.01 a GB more", TABLE_DATE, "unverified")
GRAFANA_EDITOR = _month(9.0, "https://aws.amazon.com/grafana/pricing/ (an editor is charged even if nobody logs in)", "seen")
NODE_VOLUME_GIB = _month(0.08, "EBS gp3 price page; HyperPod's own rate was not seen", "unverified")
KMS_KEY = _month(1.0, "KMS price page", "unverified")
ALARM = _month(0.10, "CloudWatch price page", "unverified")
# What depends on use alone and is therefore in no sum.
BY_USE: tuple[str, ...] = (
    "Managed Prometheus: 40 million samples, 200 billion query samples and 10 GB are free, then 0.90 USD for 10 million (unverified)",
    "Managed Grafana: 9 USD a month for each further editor who logs in, 5 for each viewer (unverified)",
    "CloudWatch logs: 0.50 USD for each GB that is written, 0.03 a month for each that is kept (unverified)",
    "S3: 0.023 USD a month for each GB, 0.005 for 1000 writes, 0.0004 for 1000 reads (unverified)",
    "ECR: 0.10 USD a month for each GB; a training image is about 20 GB (unverified)",
    "FSx backups: 0.05 USD a month for each GB (unverified)",
    "image builds and mirrors: 0.02 USD for each minute of a large CodeBuild machine (unverified); Lambda: pennies",
    "traffic: 0.045 USD for each GB through the NAT gateway, 0.01 through an interface endpoint, 0.01 each way between AZs (unverified)",
    "a load balancer, with a domain or serving.authentication: internal-load-balancer: 0.0225 USD an hour and its traffic, and where it is "
    "public 0.005 for each of its addresses (unverified)",
    "EKS: 0.60 USD an hour in place of 0.10 once the Kubernetes version is in extended support",
    "DNS queries, and Studio apps that run on top of this environment",
    "root volumes of the nodes (whether HyperPod charges them was not seen)",
)
