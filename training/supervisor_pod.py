"""The supervisor as a Deployment in the cluster, so that closing the laptop does not end a week of training.

Its manifest is the chart `supervisor` of dist/ (k8s/supervisor.py), in which the run, the options and the code are placeholders;
they are filled here, and nothing else of it is changed. The code travels as a ConfigMap, a zip that Python imports from as it is.
"""

from __future__ import annotations

import base64
import hashlib
import json
import tempfile
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

from config import names
from config.environment import Environment
from config.load import ROOT
from config.placeholders import AT_APPLY, fill, found
from config.problems import Problem, Refused
from training.kubernetes import Kubectl, Rejected
from training.run import Code

Json = dict[str, Any]
FOLDER: Final = "supervisor"
KINDS: Final = ("deployments", "configmaps")
# Stands for the log group where there is no HyperPod to tell of hangs.
NO_LOG_GROUP: Final = "none"


def manifests(env: Environment, environment_name: str, *, root: Path = ROOT) -> tuple[Path, list[Json]]:
    """The folder and the objects as `python -m k8s` wrote them. Raises Refused if they are missing, broken, or of something else."""
    from training.manifests import read_objects, rewrite

    folder = root / "dist" / env.name / FOLDER
    files = sorted(folder.glob("*.yaml")) if folder.is_dir() else []
    if not files:
        raise Refused(Problem("manifests", str(folder), "there are no manifests of the supervisor", rewrite(environment_name)))
    objects, problems = read_objects(files)
    wrong = sorted({name for name in found(objects) if name not in AT_APPLY})
    text, rule = json.dumps(objects), ""
    head = f"http://{env.ray_cluster.name}-head-svc.{env.ray_cluster.namespace}.svc:"
    if [each.get("kind") for each in objects] != ["ConfigMap", "Deployment"]:
        rule = "they do not hold a ConfigMap and a Deployment, in this order"
    elif wrong:
        rule = f"they hold placeholders that nothing fills: {', '.join(wrong)}"
    elif head not in text:
        rule = f"they are not for the environment's RayCluster {env.ray_cluster.namespace}/{env.ray_cluster.name}"
    elif names.image_uri(env) not in text:
        rule = f"they do not use the environment's image {names.image_uri(env)}"
    if rule and not problems:
        problems.append(Problem("manifests", str(folder), rule, rewrite(environment_name)))
    if problems:
        raise Refused(problems)
    return folder, objects


def values(
    run_id: str, *, options: Mapping[str, str], environment: str, code: bytes, commit: Code, by: str, log_group: str | None
) -> dict[str, str]:  # fmt: skip
    """A value for each placeholder of the manifests.

    Args:
        options: of `supervise`, by their placeholder (ATTEMPTS, HANG_FACTOR, ...).
        environment: text of the environment's file.
        code: the launcher as a zip.
        commit: what `code` was taken from.
        by: who is named as the submitter of further attempts.
        log_group: where HyperPod tells of hangs; None where it does not.
    """
    digest = hashlib.sha256(code + environment.encode() + json.dumps(dict(options), sort_keys=True).encode()).hexdigest()[:16]
    return {
        **options, "RUN_ID": names.check_run_id(run_id), "SUBMITTER": by, "HANG_LOG_GROUP": log_group or NO_LOG_GROUP,
        "ENVIRONMENT_FILE": environment, "CODE_ZIP": base64.b64encode(code).decode(), "CODE_DIGEST": digest,
        "CODE_COMMIT": commit.commit + (names.DIRTY_SUFFIX if commit.dirty else ""),
    }  # fmt: skip


def apply(kubectl: Kubectl, objects: list[Json], given: Mapping[str, str]) -> None:
    """Fill and apply. Raises Refused where the identity is missing or fields belong to another manager, Rejected, Unreachable."""
    import yaml

    env = kubectl.environment
    namespace, account = env.ray_cluster.namespace, names.SUPERVISOR_SERVICE_ACCOUNT
    with suppress(Rejected):  # whoever trains may not be allowed to look
        if kubectl.get("serviceaccounts", namespace=namespace, name=account) is None:
            rule = "the supervisor's identity is not there, and its pod would never start"
            fix = f"deploy the stack Platform: cdk deploy --all -c env={env.name}"
            raise Refused(Problem(f"service account {namespace}/{account}", "", rule, fix))
    with tempfile.TemporaryDirectory() as folder:
        for index, each in enumerate(fill(objects, given)):
            (Path(folder) / f"{index:02d}.yaml").write_text(yaml.safe_dump(each, sort_keys=False, width=10_000), encoding="utf-8")
        kubectl.apply(Path(folder))


def remove(kubectl: Kubectl, run_id: str) -> None:
    """Remove a run's Deployment and what belongs to it; content if there is none. Raises Rejected, Unreachable."""
    for kind in KINDS:
        kubectl.delete(kind, namespace=kubectl.environment.ray_cluster.namespace, name=names.supervisor(names.check_run_id(run_id)))
