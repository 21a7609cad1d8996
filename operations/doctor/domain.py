"""The domain under which Ray is reached: its hosted zone, and a certificate for it."""

from __future__ import annotations

from collections.abc import Iterator

from operations.aws import KEY_TYPES, Unanswered
from operations.doctor.check import Finding, Subject, failed, ok, warning


def domain(subject: Subject) -> Iterator[Finding]:
    """The zone exists, is public and holds the name; ACM has an issued certificate for it in the environment's region."""
    wanted = subject.environment.remote_access.domain
    if wanted is None:
        yield ok("not needed: Ray is reached without a domain")
        return
    zones_page = "https://console.aws.amazon.com/route53/v2/hostedzones"
    try:
        zone = subject.account.call("route53", "get_hosted_zone", Id=wanted.hosted_zone_id)["HostedZone"]
    except Unanswered as error:
        if error.code != "NoSuchHostedZone":
            raise
        yield failed(f"there is no hosted zone {wanted.hosted_zone_id} in account {subject.environment.account}", zones_page)
        return
    name = str(zone["Name"]).rstrip(".")
    if wanted.name != name and not wanted.name.endswith(f".{name}"):
        yield failed(
            f"hosted zone {wanted.hosted_zone_id} is {name}, and remote_access.domain.name is {wanted.name}", "mend one of the two"
        )
    elif zone.get("Config", {}).get("PrivateZone"):
        yield failed(f"hosted zone {name} is private: a laptop outside the VPC cannot find {wanted.name}", zones_page)
    else:
        yield ok(f"hosted zone {name}")
    issued = {
        str(alternative)
        for found in subject.account.pages(
            "acm", "list_certificates", "CertificateSummaryList", CertificateStatuses=["ISSUED"], Includes={"keyTypes": list(KEY_TYPES)}
        )
        for alternative in (found["DomainName"], *found.get("SubjectAlternativeNameSummaries", ()))
    }
    if {wanted.name, f"*.{wanted.name}", f"*.{wanted.name.partition('.')[2]}"} & issued:
        yield ok(f"certificate for {wanted.name}")
    else:
        yield warning(
            f"ACM has no issued certificate for {wanted.name} in {subject.environment.region}",
            f"aws acm request-certificate --region {subject.environment.region} --domain-name '*.{wanted.name}' --validation-method DNS",
        )
