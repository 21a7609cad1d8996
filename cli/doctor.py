"""`hyperpod-rl doctor`."""

from __future__ import annotations

import click

from cli.session import Session, common


@click.command(
    epilog="""\b
Example:
  hyperpod-rl --env mine doctor
  hyperpod-rl --env mine doctor --json | jq -r '.checks[] | select(.level == "failed") | .fix'

\b
Exit codes: 0 nothing failed, 1 something did, 3 AWS could not be asked (what this machine alone shows was looked at)."""
)
@common
def doctor(session: Session) -> int:
    """Look at everything that a deployment needs, and change nothing.

    Credentials, CDK's bootstrap, quotas, instance types by zone, training plans, Identity Center, domain, image, service-linked
    roles, add-on versions, addresses and pods per node, tools, clock. Each line says why, and what mends it.
    """
    from operations.doctor.run import examine

    env = session.environment()
    report = examine(env)
    counts = {level: sum(line.finding.level == level for line in report.lines) for level in ("ok", "warning", "failed")}
    session.result(
        {"environment": env.name, **report.document()},
        *(line.sentence for line in report.lines),
        f"{env.name}: {counts['ok']} ok, {counts['warning']} with a warning, {counts['failed']} failed",
    )
    return report.exit_code
