"""`hyperpod-rl status` without a run."""

from __future__ import annotations

from typing import TYPE_CHECKING

from cli.attempts import RUN_HEADERS, run_row
from cli.session import Session, table

if TYPE_CHECKING:
    from config.environment import Environment
    from operations.status import Overview, Part


def show(session: Session, address: str | None) -> int:
    """Everything at once; what does not answer says so. Returns 3 if there was such a part, else 0."""
    env = session.environment()
    seen = look(session, env, address)
    session.result({"environment": env.name, **seen.document()}, *seen.lines())
    return 3 if any(part.unknown for part in seen.parts.values()) else 0


def look(session: Session, env: Environment, address: str | None) -> Overview:
    """All parts. Raises Refused where endpoint, credentials and environment do not belong together, Unreachable without an answer."""
    from config.problems import Unreachable
    from operations.aws import Aws, Unanswered
    from operations.status import overview
    from training import deployed
    from training.kubernetes import Kubectl

    try:
        aws = Aws(env)
        # In another account nothing is deployed, which would be the wrong answer.
        deployed.check_account(env, str(aws.call("sts", "get_caller_identity")["Account"]))
    except Unanswered as error:
        raise Unreachable(error.sentence) from None
    return overview(env, aws=aws, kubectl=Kubectl(env), runs=lambda: _runs(session, env, address))


def _runs(session: Session, env: Environment, address: str | None) -> Part:
    import os

    from operations.status import Part
    from training import jobs, kubeconfig

    if address is None:
        # The toolkit would ask for a token of its own; this one was got for kubectl a moment ago.
        os.environ.update(kubeconfig.credential(kubeconfig.ensure(env)))
    with jobs.connect(env, address=address, note=session.note) as connection:
        known = jobs.runs(connection)
    attempts = [its[-1] for its in known.values()]
    rows = [run_row(attempt) for attempt in attempts]
    return Part(table(rows, RUN_HEADERS) if rows else ["no runs"], [attempt.document() for attempt in attempts])
