"""What surrounds the workloads: observability, remote access to Ray, Studio."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from config.model import Part, text

Level = Literal["DISABLED", "BASIC", "ADVANCED"]


class Observability(Part):
    """The HyperPod observability add-on, Prometheus and Grafana. Ray metrics know DISABLED and ADVANCED only."""

    enabled: bool = True
    grafana: Literal["identity-center", "saml", "none"] = "identity-center"
    ray_metrics: Literal["DISABLED", "ADVANCED"] = "ADVANCED"
    training_metrics: Level = "BASIC"
    cluster_metrics: Level = "BASIC"
    node_metrics: Level = "BASIC"
    accelerated_compute_metrics: Level = "BASIC"
    network_metrics: Literal["DISABLED", "ADVANCED"] = "DISABLED"
    logging: bool = False
    log_retention_days: Literal[1, 3, 5, 7, 14, 30, 60, 90, 120, 150, 180, 365] = 30
    scrape_interval_seconds: Annotated[int, Field(ge=10, le=300)] = 30
    monthly_budget_usd: Annotated[int, Field(gt=0)] | None = None
    # Who is told of CloudWatch's alarms and of the budget; AWS asks the address to confirm once.
    alarm_email: (
        Annotated[str, text(r"^[^@\s]+@[^@\s]+\.[^@\s]+$", rule="this is an e-mail address", example="platform@example.com")] | None
    ) = None


class Domain(Part):
    """A public Route 53 zone of the user's: without one, Ray is reached by port-forward."""

    name: Annotated[
        str,
        # ACM takes no longer one for a certificate: https://docs.aws.amazon.com/acm/latest/APIReference/API_RequestCertificate.html
        text(r"^([a-z0-9]([-a-z0-9]*[a-z0-9])?\.)+[a-z]{2,}$", rule="this is a DNS name", example="ray.example.com", max_length=64),
    ]
    hosted_zone_id: Annotated[str, text(r"^Z[A-Z0-9]{6,32}$", rule="this is the id of a Route 53 zone", example="Z0123456789ABCDEFGHIJ")]


class RemoteAccess(Part):
    """How people reach Ray's dashboard and Jobs API from outside the cluster."""

    domain: Domain | None = None
    # `private`: only the identity that applied the RayCluster; `public`: whoever may connect in its namespace.
    strategy: Literal["private", "public"] = "private"
    # The Ray Endpoint Operator is there without a domain of ours (the local cloud brings its own endpoint).
    endpoint_operator: bool = False


class Studio(Part):
    """SageMaker Studio domain for people who work from notebooks."""

    enabled: bool = False
    user_profile: Annotated[
        str,
        text(
            r"^[a-zA-Z0-9](-*[a-zA-Z0-9]){0,62}$",
            rule="a user profile name has 1 to 63 letters, digits and `-`",
            example="researcher",
        ),
    ] = "researcher"
