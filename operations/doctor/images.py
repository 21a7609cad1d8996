"""The training image: there, and the one that the environment pins."""

from __future__ import annotations

from collections.abc import Iterator

from config import names
from operations.aws import Unanswered
from operations.doctor.check import Finding, Subject, failed, ok, warning


def image(subject: Subject) -> Iterator[Finding]:
    """By digest where one is pinned, else by tag; before the first deploy there is no repository yet."""
    env = subject.environment
    repository = names.image_repository(env)
    build = f"hyperpod-rl --env {env.name} image build"
    try:
        found = subject.account.call("ecr", "describe_images", repositoryName=repository, imageIds=[{"imageTag": env.image.tag}])[
            "imageDetails"
        ]
    except Unanswered as error:
        if error.code == "RepositoryNotFoundException":
            yield warning(
                f"there is no repository {repository} yet: the stack Data makes it", f"cdk deploy --all -c env={env.name}, then {build}"
            )
            return
        if error.code != "ImageNotFoundException":
            raise
        found = []
    if not found and env.image.digest is None:
        yield warning(f"{repository}:{env.image.tag} is not built yet: cluster up needs it", build)
    elif env.image.digest is None:
        yield ok(f"{repository}:{env.image.tag} is {found[0].get('imageDigest', 'of an unknown digest')}; image.digest would pin it")
    elif found and found[0].get("imageDigest") == env.image.digest:
        yield ok(f"{repository}:{env.image.tag} has the digest that the environment pins")
    elif _there(subject, repository, env.image.digest):
        yield ok(f"{env.image.digest} is in {repository}, under another tag than {env.image.tag}")
    else:
        yield failed(
            f"{env.image.digest}, which image.digest pins, is not in {repository}", f"{build}, then set image.digest to what it prints"
        )


def _there(subject: Subject, repository: str, digest: str) -> bool:
    try:
        return bool(
            subject.account.call("ecr", "describe_images", repositoryName=repository, imageIds=[{"imageDigest": digest}])["imageDetails"]
        )
    except Unanswered as error:
        if error.code == "ImageNotFoundException":
            return False
        raise
