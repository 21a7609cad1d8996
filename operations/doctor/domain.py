"""The domain under which Ray is reached: its hosted zone, and a certificate for it."""

from __future__ import annotations

from collections.abc import Iterator

from operations.aws import KEY_TYPES, Unanswered
from operations.doctor.check import Finding, Subject, failed, ok, warning


def domain(subject: Subject) -> Iterator[Finding]:
    """The zone exists, is public and holds the name, and the certificate that the stacks ask for was issued."""
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
    yield from _certificate(subject, wanted.name)


def _certificate(subject: Subject, name: str) -> Iterator[Finding]:
    """The stack Platform asks for it, and writes the record into the zone by which ACM knows the domain for ours.

    While nobody finds that record (a registrar that names other name servers than the zone's) it stays pending, and the deploy waits.
    """
    region = subject.environment.region
    found = {
        str(item.get("Status", "")): str(item["CertificateArn"])
        for item in subject.account.pages("acm", "list_certificates", "CertificateSummaryList", Includes={"keyTypes": list(KEY_TYPES)})
        if item["DomainName"] == name
    }
    if "ISSUED" in found:
        yield ok(f"certificate for {name}")
    elif waiting := next((status for status in found if status in ("PENDING_VALIDATION", "VALIDATION_TIMED_OUT", "FAILED")), None):
        yield warning(
            f"the certificate for {name} is {waiting.lower().replace('_', ' ')}: the name servers that answer for the domain are perhaps "
            "not those of its hosted zone",
            f"aws acm describe-certificate --region {region} --certificate-arn {found[waiting]}, and compare the zone's NS record with the "
            "registrar's",
        )
    else:
        yield ok(f"certificate for {name}: the stack Platform asks for it and proves the domain in the hosted zone")
