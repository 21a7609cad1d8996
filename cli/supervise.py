"""`hyperpod-rl supervise`, and what `submit --supervise` does after submitting."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import click

from cli.session import Positive, Session, streaming

if TYPE_CHECKING:
    from config.environment import Environment
    from training.cluster import State
    from training.connection import Connection
    from training.exporter import Exporter
    from training.run import Specification
    from training.supervise import Limits


def _checked(context: click.Context, parameter: click.Parameter, run: str) -> str:
    from config.names import check_run_id

    return check_run_id(run)


_POSITIVE = Positive()


@click.command(
    epilog="""\b
Example:
  hyperpod-rl supervise maze-grpo-1
  hyperpod-rl supervise maze-grpo-1 --attempts 5 --json | jq -c 'select(.event != "step")'

\b
Ctrl-C leaves the run running; `supervise` again returns to it. Exit codes: 0 the run succeeded; 1 it did not; 3 the cluster did
not come back in time."""
)
@click.argument("run", callback=_checked)
@click.option("--attempts", type=click.IntRange(min=1), default=3, show_default=True, metavar="N",
              help="Most attempts since somebody submitted the run, however often supervising begins again.")  # fmt: skip
@click.option("--hang-factor", type=_POSITIVE, default=10.0, show_default=True, metavar="X",
              help="An attempt hangs when no step came for X median step times ...")  # fmt: skip
@click.option("--hang-minimum", type=_POSITIVE, default=15.0, show_default=True, metavar="MINUTES", help="... but never before this.")
@click.option("--first-step", type=_POSITIVE, default=60.0, show_default=True, metavar="MINUTES",
              help="Time for an attempt to load its models and make its first step.")  # fmt: skip
@click.option("--ready", type=_POSITIVE, default=120.0, show_default=True, metavar="MINUTES",
              help="Time for the cluster to have all GPUs back after a fault.")  # fmt: skip
@click.option("--deploy", is_flag=True, help="Do it in the cluster, as a Deployment with an identity of its own, and return.")
@click.option("--dry-run", is_flag=True, help="With --deploy: show with what its manifests in dist/ would be filled, and apply nothing.")
@click.option("--undeploy", is_flag=True, help="Remove that Deployment; the run is left as it is.")
@click.option("--metrics-port", type=click.IntRange(1, 65535), metavar="PORT", help="Publish the training series for Prometheus there.")
@click.option("--metrics-address", metavar="IP", default="127.0.0.1", show_default=True, help="Address that the port listens on.")
@click.option("--address", metavar="URL", help="Ray's Jobs API, instead of the one chosen from the environment.")
@streaming
def supervise(
    session: Session, run: str, attempts: int, hang_factor: float, hang_minimum: float, first_step: float, ready: float,
    deploy: bool, dry_run: bool, undeploy: bool, metrics_port: int | None, metrics_address: str, address: str | None,
) -> int:  # fmt: skip
    """Watch over a run, and start its next attempt after a fault.

    A failed, hung or lost attempt is stopped if need be; when all GPUs are ready again the next one goes on from the last
    checkpoint. They are ready when Kubernetes says so, or Ray where --address is http://... The same error at the same step twice
    ends it at once. Every decision is printed, and is an event of the run's record where the shared file system is visible.
    """
    from training import jobs
    from training.supervise import Limits

    if (dry_run and not deploy) or (deploy and undeploy):
        raise click.UsageError("--dry-run goes with --deploy, and --deploy not with --undeploy")
    env = session.environment()
    if deploy or undeploy:
        options = {"ATTEMPTS": str(attempts), "HANG_FACTOR": f"{hang_factor:g}", "HANG_MINIMUM": f"{hang_minimum:g}",
                   "FIRST_STEP": f"{first_step:g}", "READY": f"{ready:g}"}  # fmt: skip
        return _in_cluster(session, env, run, options=options, apply=not dry_run, remove=undeploy)
    limits = Limits(
        attempts=attempts, hang_factor=hang_factor, hang_minimum=hang_minimum * 60, first_step=first_step * 60, ready=ready * 60
    )

    with jobs.connect(env, address=address, note=session.note) as connection:
        its = jobs.attempts(connection, run)
        first: list[Specification] = []

        def specification() -> Specification:
            # Made once, and before anything fails: a head that is restarted forgets what was submitted.
            if not first:
                first.append(_submitted(env, connection, run))
            return first[0]

        if not its or its[-1].status != "SUCCEEDED":
            specification()
        with contextlib.ExitStack() as stack:
            exporter = None
            if metrics_port is not None:
                from training import follow
                from training.exporter import Exporter

                exporter = Exporter(env, run, total_steps=follow.total_steps(env, its[-1]) if its else None)
                stack.callback(exporter.serve(metrics_port, address=metrics_address))
            # Given Ray's own address, this may be a pod or a CI job that has no way to Kubernetes.
            by_ray = address is not None and not address.startswith("sagemaker_ray://")
            return watch_over(
                session, env, connection, run, specification=specification, limits=limits, exporter=exporter, by_ray=by_ray
            )  # fmt: skip


def _in_cluster(session: Session, env: Environment, run: str, *, options: dict[str, str], apply: bool, remove: bool) -> int:
    """Fill and apply the manifests of the supervisor's Deployment, or remove it."""
    from config import names
    from config.load import path_of
    from config.problems import Problem, Refused
    from serving.cluster_job import bundle
    from training import hangs, jobs, supervisor_pod
    from training.kubernetes import Kubectl
    from training.run import current_code

    name, namespace = names.supervisor(run), env.ray_cluster.namespace
    if env.local and (apply or remove):
        rule = "the local cloud runs no containers"
        raise Refused(Problem("--undeploy" if remove else "--deploy", env.name, rule, "leave it out, or say --dry-run"))
    if remove:
        supervisor_pod.remove(Kubectl(env), run)
        said = f"Deployment {namespace}/{name} is removed; run {run} is left as it is"
        session.result({"run_id": run, "deployment": name, "removed": True}, said)
        return 0
    folder, objects = supervisor_pod.manifests(env, session.environment_name)
    text = path_of(session.environment_name).read_text(encoding="utf-8")
    log_group = hangs.log_group(env) if apply and hangs.there(env) else None
    given = supervisor_pod.values(
        run, options=options, environment=text, code=bundle(), commit=current_code(), by=jobs.submitter(), log_group=log_group
    )
    if apply:
        supervisor_pod.apply(Kubectl(env), objects, given)
    large = {key: f"{len(given[key])} characters" for key in ("ENVIRONMENT_FILE", "CODE_ZIP")}
    shown = given | large | ({} if apply or not hangs.there(env) else {"HANG_LOG_GROUP": f"{names.hang_log_groups(env)}..."})
    session.result(
        {"run_id": run, "deployment": name, "namespace": namespace, "folder": str(folder), "applied": apply, "values": shown},
        f"manifests: {folder}, with",
        *(f"  ${{{key}}} = {value}" for key, value in sorted(shown.items())),
        *([f"Deployment {namespace}/{name} watches over run {run}; its words: kubectl --namespace {namespace} logs deploy/{name}",
           f"remove it with: hyperpod-rl --env {session.environment_name} supervise {run} --undeploy"] if apply else []),
    )  # fmt: skip
    return 0


def _submitted(env: Environment, connection: Connection, run: str) -> Specification:
    """The specification of the newest attempt. Raises Refused if nobody knows it, or if the environment has changed since."""
    from config.problems import Problem, Refused
    from training import jobs, record, reproduce

    folder = record.folder_here(env, run)
    known = record.read(folder) if folder is not None else None
    what = reproduce.submitted(run, attempts=jobs.attempts(connection, run), record=known)
    if what is None:
        jobs.newest(connection, run)
        rule = "neither the Ray cluster nor the record tells what it was submitted with"
        raise Refused(Problem("run", run, rule, f"submit it again: hyperpod-rl submit --run-id {run} --supervise"))
    return reproduce.again(env, what)


def watch_over(
    session: Session, env: Environment, connection: Connection, run: str, *, specification: Callable[[], Specification],
    limits: Limits | None = None, exporter: Exporter | None = None, by_ray: bool = False,
) -> int:  # fmt: skip
    """Supervise a run and print what happens, as lines or as one JSON object a line. Returns the exit code.

    `by_ray`: how the cluster stands is asked of Ray, not of Kubernetes.
    """
    from training import hangs
    from training import supervise as supervising
    from training.exporter import exported
    from training.follow import Ended
    from training.keeping import Keeper

    keeper = Keeper(connection, run, note=session.note)
    if keeper.folder is None:
        session.note("the shared file system is not visible here, so no record is kept: see $HYPERPOD_RL_SHARED")
    supervisor = supervising.Supervisor(
        connection,
        run,
        specification,
        _standing(env, connection, by_ray=by_ray),
        keeper,
        limits=limits or supervising.Limits(),
        hang=hangs.watcher(env, session.note),
    )
    code = 1
    try:
        for event in exported(supervisor.run(), exporter):
            if isinstance(event, supervising.Verdict):
                code = 0 if event.succeeded else 1
            if session.json:
                document: dict[str, Any] = supervising.document(event) if not isinstance(event, Ended) else {}
                session.line(document)
            else:
                click.echo(supervising.sentence(event))
    except KeyboardInterrupt:
        session.note(
            f"\nno longer supervising; run {run} goes on. Return with: hyperpod-rl --env {session.environment_name} supervise {run}"
        )
        if session.json:
            session.line({"event": "interrupted", "run_id": run, "job": "goes on"})
        return 130
    return code


def _standing(env: Environment, connection: Connection, *, by_ray: bool) -> Callable[[], State]:
    """How the RayCluster stands: as Kubernetes says, as Ray says, or in a pod of the cluster as both say."""
    from training import cluster as clusters
    from training import pod_api, ray_nodes
    from training.kubernetes import Kubectl, Rejected

    def both() -> State:
        # Kubernetes knows why a node is not there, Ray whether its GPUs have joined.
        with contextlib.suppress(Rejected):  # a Role that is not there (yet): then Ray alone
            if inside is not None and not (state := clusters.state(inside)).ready:
                return state
        return ray_nodes.state(connection)

    if (inside := pod_api.here(env)) is not None:
        return both
    return (lambda: ray_nodes.state(connection)) if by_ray else (lambda: clusters.state(Kubectl(env)))
