"""Network and access: where the nodes live and who may reach them."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from config.model import Arn, Cidr, Name, Part, text

ZoneId = Annotated[str, text(r"^[a-z]{2,4}[0-9]-az[0-9]$", rule="this is an AZ id, not an AZ name", example="usw2-az2")]
VpcId = Annotated[str, text(r"^vpc-[0-9a-f]{8,17}$", rule="this is a VPC id", example="vpc-0123456789abcdef0")]
SubnetId = Annotated[str, text(r"^subnet-[0-9a-f]{8,17}$", rule="this is a subnet id", example="subnet-0123456789abcdef0")]

# Interface endpoints that a network without a way out needs. `lambda` is not in AWS's list: CDK's kubectl provider invokes its
# handler from inside the VPC. https://docs.aws.amazon.com/eks/latest/userguide/private-clusters.html
CLOSED_ENDPOINTS = (
    "sagemaker.api",
    "eks",
    "eks-auth",
    "ec2",
    "elasticloadbalancing",
    "ecr.api",
    "ecr.dkr",
    "sts",
    "kms",
    "logs",
    "monitoring",
    "fsx",
    "lambda",
)


class ExistingNetwork(Part):
    """A VPC of the user's own, by id. Subnets need routes to S3 and, unless closed, to the internet."""

    vpc_id: VpcId
    cidr: Cidr
    hyperpod_subnet_id: SubnetId
    cluster_subnet_ids: Annotated[tuple[SubnetId, ...], Field(min_length=2)]


class Network(Part):
    """One AZ id for FSx and every instance group (EFA does not cross AZs), a second one for the EKS control plane."""

    cidr: Cidr = "10.192.0.0/16"
    hyperpod_cidr: Cidr = "10.1.0.0/16"
    # The nodes live in the first. Once deployed the ranges and the first two zones stay: the stack's own guard refuses a deploy that would
    # move them, before anything is made. A third zone may come later.
    availability_zone_ids: Annotated[tuple[ZoneId, ...], Field(min_length=2, max_length=3)]
    egress: Literal["nat", "closed"] = "nat"
    existing: ExistingNetwork | None = None

    @property
    def cidrs(self) -> tuple[str, ...]:
        """Address ranges of the VPC."""
        return (self.existing.cidr,) if self.existing is not None else (self.cidr, self.hyperpod_cidr)


class User(Part):
    """An IAM role that may run workloads in the named namespaces (all of the environment's if none is named)."""

    role_arn: Arn
    namespaces: tuple[Name, ...] = ()


class Delivery(Part):
    """A GitHub repository whose workflows plan and deploy this environment through OpenID Connect; no key is kept anywhere."""

    repository: Annotated[
        str, text(r"^[A-Za-z0-9][A-Za-z0-9-]*/[A-Za-z0-9._-]+$", rule="this is a GitHub repository", example="owner/name")
    ]
    branch: Annotated[str, text(r"^[A-Za-z0-9][A-Za-z0-9._/-]*$", rule="this is a branch, without wildcards", example="main")] = "main"


class Access(Part):
    """Who may reach the Kubernetes API, and from where; and who deploys without keys."""

    endpoint: Literal["public", "private"] = "public"
    public_cidrs: tuple[Cidr, ...] = ()
    administrators: tuple[Arn, ...] = ()
    training_users: tuple[User, ...] = ()
    inference_users: tuple[User, ...] = ()
    delivery: Delivery | None = None
