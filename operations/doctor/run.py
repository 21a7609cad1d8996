"""Runs the checks, side by side since most of their time is waiting, and judges the whole."""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

from config.environment import Environment
from config.problems import Refused
from operations.aws import Aws, Unanswered, seconds_of
from operations.doctor import account, addons, capacity, domain, images, machine, network, nodes, quotas
from operations.doctor.check import Check, Finding, Identity, Line, Subject, failed
from training.refusals import STRANGE

AT_ONCE = 12
# No account can turn this region off.
ALWAYS_ENABLED = "us-east-1"
CREDENTIALS = Check("credentials", "credentials, and whether they belong to the environment's account", account.credentials)
CHECKS: Sequence[Check] = (
    Check("tools", "programs on this machine and their versions", machine.tools, needs_aws=False),
    Check("nodes", "IP addresses and pods per node", nodes.nodes, needs_aws=False),
    Check("clock", "this machine's clock against AWS's", machine.clock, needs_aws=False),
    Check("bootstrap", "CDK's toolkit stack", account.bootstrap),
    Check("service-linked-roles", "roles that AWS services make for themselves", account.service_linked_roles),
    Check("quota-instances", "quota of each instance type for cluster usage", quotas.instances),
    Check("quota-cluster", "instances per cluster and in total, volume per instance", quotas.cluster),
    Check("quota-network", "VPCs and Elastic IP addresses", quotas.network),
    Check("offerings", "instance types in the AZ where the nodes live", capacity.offerings),
    Check("capacity", "training plans, or capacity on demand", capacity.plans),
    Check("subnet", "subnets of your own, or whether the environment's are where it wants them", network.subnets),
    Check("addons", "add-on versions for the Kubernetes version", addons.versions),
    Check("identity-center", "IAM Identity Center, where Grafana wants it", account.identity_center),
    Check("domain", "hosted zone and certificate", domain.domain),
    Check("image", "the training image in ECR, and its digest", images.image),
)


@dataclass(frozen=True)
class Report:
    """Every line, and whether AWS was reached."""

    lines: Sequence[Line]
    reached: bool

    @property
    def exit_code(self) -> int:
        """3 if AWS could not be asked, else 1 if something failed, else 0."""
        if not self.reached:
            return 3
        return 1 if any(line.finding.level == "failed" for line in self.lines) else 0

    def document(self) -> dict[str, Any]:
        """For programs."""
        counts = {level: sum(line.finding.level == level for line in self.lines) for level in ("ok", "warning", "failed")}
        return {
            "checks": [line.document() for line in self.lines], **counts, "reached": self.reached, "exit_code": self.exit_code,
        }  # fmt: skip


def examine(env: Environment, *, session: Any = None, now: Callable[[], float] = time.time) -> Report:
    """Look at everything. Never raises for what it looks at: a check that AWS does not answer says so."""
    subject, refusal = _subject(env, session, now)
    with ThreadPoolExecutor(AT_ONCE) as pool:
        found = list(pool.map(lambda check: _look(check, subject), CHECKS))
    lines = [Line(CREDENTIALS, refusal or next(iter(account.credentials(subject))))]
    lines += [Line(check, finding) for check, findings in zip(CHECKS, found, strict=True) for finding in findings]
    return Report(lines, reached=subject.identity is not None)


def _subject(env: Environment, session: Any, now: Callable[[], float]) -> tuple[Subject, Finding | None]:
    """The subject, and why it has no AWS."""
    try:
        aws = Aws(env, session)
        answer = aws.call("sts", "get_caller_identity")
    except Refused as error:
        (problem,) = error.problems
        return Subject(env, variables=os.environ, now=now), Finding(
            "failed", f"{problem.field} = {problem.value}: {problem.rule}", problem.fix
        )
    except Unanswered as error:
        return Subject(env, variables=os.environ, now=now, answered_at=error.time), _refused(env, session, error)
    date = answer["ResponseMetadata"].get("HTTPHeaders", {}).get("date")
    identity = Identity(str(answer["Account"]), str(answer["Arn"]))
    return Subject(env, aws, identity, os.environ, now, seconds_of(date)), None


def _refused(env: Environment, session: Any, error: Unanswered) -> Finding:
    """Why nobody answers. A region that is not enabled takes no credentials of the account; another region then does."""
    if error.code in STRANGE and env.region != ALWAYS_ENABLED:
        with contextlib.suppress(Unanswered):
            account = Aws(env, session).call("sts", "get_caller_identity", in_region=ALWAYS_ENABLED)["Account"]
            return failed(
                f"AWS cannot be asked in {env.region}: {error.message}; in {ALWAYS_ENABLED} it takes the credentials, "
                f"so the region is not enabled for account {account}",
                f"aws account enable-region --region-name {env.region}",
            )
    return failed(f"AWS cannot be asked: {error.message}", error.fix)


def _look(check: Check, subject: Subject) -> list[Finding]:
    if check.needs_aws and subject.aws is None:
        return [Finding("warning", "not looked at: AWS cannot be asked", looked=False)]
    try:
        return list(check.look(subject))
    except Unanswered as error:
        return [Finding("warning", f"not looked at: {error}".rstrip("."), error.fix, looked=False)]
