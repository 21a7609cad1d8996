"""The training image: how it is built, whether it is there, and the digests that the environment then pins.

Docker on this machine where it answers, else the environment's CodeBuild project: the image is about 20 GB, which nobody wants
to push through a laptop's uplink. Either way ECR says in the end what is there, not the end of a log.
"""

from __future__ import annotations

import shutil
import subprocess
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from datetime import UTC
from pathlib import Path
from typing import Any, Literal

from config import images, names
from config.environment import Environment
from config.names import Parameter
from config.problems import Failed, Problem, Refused, Unreachable
from training import deployed

DOCKER = Path(__file__).resolve().parent.parent / "docker"
PLATFORM = "linux/amd64"
POLL_SECONDS = 10.0
# CodeBuild itself ends a build after the project's timeout (three hours); this is the end of our patience with its answers.
LONGEST_SECONDS = 4 * 3600.0
Builder = Literal["docker", "codebuild"]


@dataclass(frozen=True)
class Plan:
    """What a build would do; the same object goes into the build."""

    builder: Builder
    repository: str
    tag: str
    arguments: Mapping[str, str]

    @property
    def uri(self) -> str:
        """The image by its tag."""
        return f"{self.repository}:{self.tag}"

    def document(self) -> dict[str, Any]:
        """For `--json`."""
        return {"builder": self.builder, "image": self.uri, "arguments": dict(self.arguments)}


@dataclass(frozen=True)
class Image:
    """One image in ECR. `size_bytes` is its compressed size; times are ISO 8601 in UTC."""

    digest: str
    tags: tuple[str, ...]
    pushed_at: str | None = None
    size_bytes: int | None = None

    def document(self) -> dict[str, Any]:
        """For `--json`."""
        return asdict(self)


@dataclass(frozen=True)
class Outcome:
    """A finished build. `base_digest` is not known when the image was there already."""

    image: Image
    built: bool
    base_digest: str | None = None


def plan(env: Environment, *, builder: Builder | None = None) -> Plan:
    """How the image would be built. Reaches nothing but this machine's Docker, and that only when no builder is named."""
    chosen: Builder = builder or ("docker" if not env.local and docker_answers() else "codebuild")
    if env.local and chosen == "docker":
        rule = "the local cloud has no registry that Docker could push to"
        raise Refused(Problem("--with", "docker", rule, "leave it out, or say --with codebuild"))
    repository = names.image_uri(env).partition("@")[0].removesuffix(f":{env.image.tag}")
    return Plan(chosen, repository, env.image.tag, images.build_arguments(env))


def docker_answers() -> bool:
    """Whether Docker is installed here and its daemon answers."""
    if shutil.which("docker") is None:
        return False
    try:
        return subprocess.run(["docker", "info"], capture_output=True, timeout=10, check=False).returncode == 0
    except (OSError, subprocess.TimeoutExpired):
        return False


def find(env: Environment, aws: Any, *, digest: str | None = None) -> Image | None:
    """The image with the environment's tag (or with a digest) as ECR knows it; None if there is none.

    Raises Unreachable when ECR does not answer or the repository is not deployed.
    """
    repository = names.image_repository(env)
    client = deployed.client(env, "ecr", aws)
    wanted = {"imageDigest": digest} if digest else {"imageTag": env.image.tag}
    with deployed.reaching("ECR"):
        try:
            details = client.describe_images(repositoryName=repository, imageIds=[wanted])["imageDetails"]
        except client.exceptions.ImageNotFoundException:
            return None
        except client.exceptions.RepositoryNotFoundException:
            deploy = f"cdk deploy Data -c env={env.name}"
            raise Unreachable(f"there is no repository {repository} in ECR yet: the stack Data makes it ({deploy})") from None
    if not details:
        return None
    found = details[0]
    pushed = found.get("imagePushedAt")
    return Image(
        digest=str(found["imageDigest"]),
        tags=tuple(sorted(found.get("imageTags", ()))),
        pushed_at=pushed.astimezone(UTC).isoformat(timespec="seconds") if hasattr(pushed, "astimezone") else None,
        size_bytes=found.get("imageSizeInBytes"),
    )


def missing(env: Environment, aws: Any = None, *, environment_name: str = "") -> Problem | None:
    """What `cluster up` refuses: ECR has not the image that the environment names, so every pod would wait for it for ever.

    None where it is there, and in the local cloud, whose pods pull nothing. Raises Unreachable where ECR does not say (no
    credentials, no permission to look), Refused for credentials of another account.
    """
    if env.local:
        return None
    digest = env.image.digest
    if find(env, aws or deployed.session(env), digest=digest) is not None:
        return None
    build = f"hyperpod-rl --env {environment_name or env.name} image build"
    if digest is not None:
        rule = f"ECR has no image of this digest in the repository {names.image_repository(env)}"
        return Problem("image.digest", digest, rule, f"take image.digest out and run `{build}`, which pins the new one")
    rule = f"ECR has no image of this tag in the repository {names.image_repository(env)}"
    return Problem("image.tag", env.image.tag, rule, f"run `{build}` first")


def build(
    env: Environment,
    aws: Any,
    wanted: Plan,
    *,
    note: Callable[[str], None],
    sleep: Callable[[float], None] = time.sleep,
    clock: Callable[[], float] = time.monotonic,
) -> Outcome:
    """Build and push, unless an image with this tag is there: the repository's tags are immutable, so it is this one for good.

    Raises Failed when a build ends otherwise, Unreachable when AWS does not answer.
    """
    there = find(env, aws)
    if there is not None:
        return Outcome(there, built=False)
    if wanted.builder == "docker":
        base_digest = _with_docker(env, aws, wanted, note=note)
    else:
        base_digest = _with_codebuild(env, aws, wanted, note=note, sleep=sleep, clock=clock)
    made = find(env, aws)
    if made is None:
        raise Failed(f"the build ended well, but ECR has no image {wanted.uri}; look at its log")
    return Outcome(made, built=True, base_digest=base_digest)


# --- CodeBuild ---


def _with_codebuild(
    env: Environment, aws: Any, wanted: Plan, *, note: Callable[[str], None], sleep: Callable[[float], None], clock: Callable[[], float]
) -> str | None:
    """Start the environment's project, or attach to the build that runs already, and wait. Returns the base image's digest."""
    project = deployed.lookup(env, aws)[Parameter.IMAGE_PROJECT]
    client = deployed.client(env, "codebuild", aws)
    with deployed.reaching("CodeBuild"):
        current = running(client, project)
        if current is None:
            variables = {"TAG": wanted.tag, **wanted.arguments}
            given = [{"name": name, "value": value, "type": "PLAINTEXT"} for name, value in sorted(variables.items())]
            current = client.start_build(projectName=project, environmentVariablesOverride=given)["build"]
            note(f"started {current['id']}: it goes on when this command is interrupted, and running it again attaches to it")
        else:
            note(f"attached to {current['id']}, which runs already")
        found = _ended(client, str(current["id"]), note=note, sleep=sleep, clock=clock)
    exported = {entry["name"]: entry["value"] for entry in found.get("exportedEnvironmentVariables", ())}
    return exported.get("BASE_DIGEST") or None


def running(client: Any, project: str) -> dict[str, Any] | None:
    """The build of a project that is in progress, if there is one: a project runs one at a time."""
    newest = client.list_builds_for_project(projectName=project, sortOrder="DESCENDING")["ids"][:5]
    builds = client.batch_get_builds(ids=newest)["builds"] if newest else []
    return next((found for found in builds if found["buildStatus"] == "IN_PROGRESS"), None)


def _ended(
    client: Any, build_id: str, *, note: Callable[[str], None], sleep: Callable[[float], None], clock: Callable[[], float]
) -> dict[str, Any]:
    began, phase = clock(), ""
    while clock() - began < LONGEST_SECONDS:
        found: dict[str, Any] = client.batch_get_builds(ids=[build_id])["builds"][0]
        if found["buildStatus"] != "IN_PROGRESS":
            if found["buildStatus"] == "SUCCEEDED":
                return found
            raise Failed(f"build {build_id} ended as {found['buildStatus']}: {_reason(found)}; its log is {_log(found)}")
        if found.get("currentPhase") and found["currentPhase"] != phase:
            phase = found["currentPhase"]
            note(f"{(clock() - began) / 60:.0f} min: {phase.lower().replace('_', ' ')}")
        sleep(POLL_SECONDS)
    raise Failed(f"build {build_id} has not ended after {LONGEST_SECONDS / 3600:.0f} hours; its log says where it is")


def _reason(found: Mapping[str, Any]) -> str:
    failed = [phase for phase in found.get("phases", ()) if phase.get("phaseStatus") not in (None, "SUCCEEDED")]
    said = [context["message"] for phase in failed for context in phase.get("contexts", ()) if context.get("message")]
    return " ".join(said[-1].split()) if said else f"in {', '.join(phase['phaseType'] for phase in failed) or 'an unknown phase'}"


def _log(found: Mapping[str, Any]) -> str:
    logs = found.get("logs", {})
    return str(logs.get("deepLink") or logs.get("groupName") or "in the project's log group")


# --- Docker ---


def _with_docker(env: Environment, aws: Any, wanted: Plan, *, note: Callable[[str], None]) -> str | None:
    """Pull the base, build, push. Returns the base image's digest; Docker's own output goes to standard error."""
    base = wanted.arguments["BASE"]
    note(f"pulling {base}")
    _docker("pull", "--platform", PLATFORM, base)
    pinned = _docker("inspect", "--format", "{{index .RepoDigests 0}}", base, capture=True).strip()
    note(f"building {wanted.uri} from {pinned}")
    arguments = [f"--build-arg={name}={value}" for name, value in {**wanted.arguments, "BASE": pinned}.items()]
    _docker("build", "--platform", PLATFORM, *arguments, "--tag", wanted.uri, str(DOCKER))
    with deployed.reaching("ECR"):
        token = deployed.client(env, "ecr", aws).get_authorization_token()["authorizationData"][0]["authorizationToken"]
    import base64

    user, _, password = base64.b64decode(token).decode().partition(":")
    _docker("login", "--username", user, "--password-stdin", wanted.repository.partition("/")[0], stdin=password)
    note(f"pushing {wanted.uri}")
    _docker("push", wanted.uri)
    return pinned.partition("@")[2] or None


def _docker(*arguments: str, stdin: str | None = None, capture: bool = False) -> str:
    """Run Docker. Raises Failed with the step that failed; a password goes through standard input, never into an argument."""
    import sys

    output = subprocess.PIPE if capture else sys.stderr
    done = subprocess.run(["docker", *arguments], input=stdin, text=True, stdout=output, stderr=None, check=False)
    if done.returncode:
        raise Failed(f"`docker {arguments[0]}` failed (exit code {done.returncode}); what it said stands above")
    return done.stdout or ""
