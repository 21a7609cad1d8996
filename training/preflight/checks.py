"""Everything that can be known to fail, looked for before a GPU is paid for: on the laptop, in the run's folder, on the cluster."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Final

from config.environment import Environment
from config.problems import Failed, Problem, Unreachable
from training import frameworks, skyrl_rules
from training.preflight import disk, gpu, resume
from training.preflight.findings import Finding, Report, Rule, Subject

if TYPE_CHECKING:
    from training.connection import Connection
    from training.run import Specification

RULES: Final[tuple[Rule, ...]] = (*gpu.RULES, *disk.RULES, *resume.RULES)


def subject_of(env: Environment, specification: Specification) -> Subject:
    """What the rules look at."""
    return Subject(env, specification.overrides, specification.run_id, specification.origin)


def laptop(subject: Subject, *, variables: frozenset[str] | None = None) -> Report:
    """Every rule that needs no cluster: SkyRL's and ours, memory, disk, and the run's folder where it is visible."""
    env = subject.environment
    if (framework := frameworks.of(env)) is not None:
        found = [Finding(framework.name, "error", problem) for problem in framework.problems(env, subject.values)]
        return Report(found, {}, [f"the rules of {framework.name}; memory and disk are computed for SkyRL only"])
    found = [
        Finding(broken.name, broken.level, broken.problem)
        for broken in skyrl_rules.findings(subject.values, world_gpus=env.training_gpus, environment=variables)
    ]
    checked = [f"{len(skyrl_rules.RULES)} rules of SkyRL's configuration, and the range and words of each value"]
    if any(finding.name.startswith(("word:", "range:")) for finding in found):
        return Report(found, {}, checked)  # the arithmetic needs numbers that make sense
    for rule in RULES:
        found += rule.findings(subject)
    checked.append(f"{len(RULES)} rules of GPU memory, disk and resumption")
    if subject.origin is not None:
        found += resume.begins_with(subject)
        checked.append(f"the checkpoint of {subject.origin}")
    if (before := resume.last_overrides(subject)) is not None:
        found += resume.compare(before, subject)
        checked.append("the record of the last attempt")
    return Report(tuple(found), _arithmetic(subject), tuple(checked))


def _arithmetic(subject: Subject) -> dict[str, str]:
    together = gpu.colocated(subject)
    lines = {f"GPU, {name}": peak.formula(colocated=together) + f"; {subject.gpu}" for name, peak in gpu.peaks(subject)}
    if (engine := gpu.engine(subject)) is not None:
        lines["GPU, rollout engine"] = engine.formula()
    if (written := disk.disk(subject)) is not None:
        lines["disk"] = written.formula(disk.capacity(subject))
    return lines


def last_attempt(connection: Connection, subject: Subject) -> Report:
    """What changed since the run's last attempt, as Ray's job table tells it. Nothing for a running one: `submit` compares that."""
    from training import jobs

    if frameworks.of(subject.environment) is not None:
        return Report()

    its = jobs.attempts(connection, subject.run_id)
    if not its or its[-1].running:
        return Report(checked=("no ended attempt of this run is known to the cluster",))
    try:
        before = json.loads((its[-1].metadata or {}).get("overrides", ""))
    except ValueError:
        return Report(checked=(f"attempt {its[-1].number}, which does not tell its overrides",))
    return Report(resume.compare(before, subject), checked=(f"attempt {its[-1].number} of this run",))


def unreached(reason: str) -> Report:
    """The cluster was not asked, and why."""
    problem = Problem("cluster", "", f"it was not checked: {reason.rstrip('.')}", "hyperpod-rl cluster up")
    return Report((Finding("cluster-answers", "warning", problem),), checked=())


def cluster(connection: Connection, subject: Subject, specification: Specification, *, probe: bool = False) -> Report:
    """What only the cluster can say, and what changed since the last attempt; a warning where it cannot be asked."""
    from training.connection import Answered
    from training.preflight import cluster as remote

    env = subject.environment
    try:
        seen = remote.look(connection)
    except Unreachable as error:
        return unreached(str(error))
    found = remote.judge(seen, specification, ray=env.version_set.training.ray, wanted_gpus=subject.gpus)
    checked = [f"Ray {seen.ray_version or '(version unknown)'}, {'unknown' if seen.gpus is None else seen.gpus} GPUs"]
    if probe and not env.local:
        from training.kubernetes import Kubectl

        try:
            found += remote.images(Kubectl(env))
            checked.append("the images of the Ray pods")
        except (Failed, Unreachable) as error:
            problem = Problem(
                "image", "", f"nothing was learnt of the pods' images: {str(error).rstrip('.')}", "see hyperpod-rl cluster status"
            )
            found.append(Finding("cluster-runs-the-pinned-image", "warning", problem))
    if probe and not any(finding.level == "error" for finding in found):
        module = remote.module_of(env.training.entrypoint)
        try:
            found += remote.probe(connection, specification, module=module)
            checked.append(f"a task on a worker: imports {module}, writes {env.storage.file_system.mount_path} and the bucket")
        except (Answered, Unreachable) as error:
            problem = Problem(
                "worker", "", f"nothing was learnt of the workers: {str(error).rstrip('.')}", "see hyperpod-rl cluster status"
            )
            found.append(Finding("worker-runs-a-task", "warning", problem))
    return Report(found, checked=tuple(checked)).and_also(last_attempt(connection, subject))
