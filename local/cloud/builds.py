"""CodeBuild without Docker: a build ends well at once, and what it was to push into ECR is there.

The image that a build pushes is a manifest without layers, which names what it was to be built from: its digest changes when that
does, and nothing here ever pulls it. A chart is pushed by the mirror's script, which this stand-in cannot read: only the project's
own variables IMAGE and TAG say what is pushed.
"""

from __future__ import annotations

import json
from typing import Any

from local.cloud import faults
from local.cloud.store import Cloud


def install(cloud: Cloud) -> None:
    """Put ours in front of ministack's StartBuild."""
    from ministack.services import codebuild, ecr

    start = codebuild._start_build

    def start_build(data: dict[str, Any]) -> Any:
        answer = start(data)
        status, _, body = answer
        if status != 200:
            return answer
        made = codebuild._builds[json.loads(body)["build"]["id"]]
        variables = _variables(codebuild._projects[data["projectName"]], data)
        try:
            # Wherever CodeBuild is asked for: a switch on the project's type makes its builds fail.
            cloud.faults.act("update", str(data["projectName"]), "AWS::CodeBuild::Project")
        except faults.Injected as failure:
            made.update(
                buildStatus="FAILED", phases=[{"phaseType": "BUILD", "phaseStatus": "FAILED", "contexts": [{"message": str(failure)}]}]
            )
            return answer
        if {"IMAGE", "TAG"} <= set(variables):
            ecr._put_image({
                "repositoryName": variables["IMAGE"].partition("/")[2],
                "imageTag": variables["TAG"],
                "imageManifest": json.dumps({"schemaVersion": 2, "layers": [], "annotations": variables}, sort_keys=True),
            })  # fmt: skip
        return answer

    codebuild._start_build = start_build


def _variables(project: dict[str, Any], data: dict[str, Any]) -> dict[str, str]:
    own = (project.get("environment") or {}).get("environmentVariables") or []
    return {entry["name"]: str(entry["value"]) for entry in [*own, *(data.get("environmentVariablesOverride") or [])]}
