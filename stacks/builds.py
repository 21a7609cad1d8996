"""CodeBuild projects: the training image (about 20 GB, nobody wants it through a laptop), the mirrors of charts and of images."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from aws_cdk import Duration, RemovalPolicy
from aws_cdk import aws_codebuild as codebuild
from aws_cdk import aws_ecr as ecr
from aws_cdk import aws_iam as iam
from aws_cdk import aws_s3_assets as assets
from aws_cdk import custom_resources as cr
from constructs import Construct

from config import images, names
from stacks.allow import Allow
from stacks.charts import Chart, mirrored, registry
from stacks.functions import function, log_group, resource
from stacks.handlers import mirror
from stacks.roles import role
from stacks.stack import EnvironmentStack, Settings

DOCKER = Path(__file__).resolve().parent.parent / "docker"
BUILD_IMAGE = "aws/codebuild/amazonlinux-x86_64-standard:5.0"
_PUSH = (
    "ecr:BatchCheckLayerAvailability",
    "ecr:BatchGetImage",
    "ecr:CompleteLayerUpload",
    "ecr:GetDownloadUrlForLayer",
    "ecr:InitiateLayerUpload",
    "ecr:PutImage",
    "ecr:UploadLayerPart",
    "ecr:DescribeImages",
)


_PULL = ("ecr:BatchCheckLayerAvailability", "ecr:BatchGetImage", "ecr:GetDownloadUrlForLayer")


class ImageBuild(Construct):
    """A project that builds docker/ and pushes it; `hyperpod-rl image build` starts it."""

    def __init__(self, stack: EnvironmentStack, *, repository: ecr.CfnRepository) -> None:
        super().__init__(stack, "ImageBuild")
        settings = stack.settings
        source = assets.Asset(stack, "ImageSource", path=str(DOCKER))
        self.project = project(
            stack,
            "Image",
            description=f"Builds the training image {settings.image.repository}",
            minutes=180,
            compute="BUILD_GENERAL1_LARGE",
            docker=True,
            allow=[
                Allow(_PUSH, [repository.attr_arn]),
                Allow(["s3:GetObject"], [source.bucket.arn_for_objects(source.s3_object_key)]),
            ],
            source={"type": "S3", "location": f"{source.s3_bucket_name}/{source.s3_object_key}", "buildSpec": "buildspec.yml"},
            variables={"IMAGE": repository.attr_repository_uri, "TAG": settings.image.tag, **images.build_arguments(settings)},
        )


class ChartMirror(Construct):
    """Copies charts into this account's ECR, at deploy time, since the dependency chart lives in a Git repository only.

    https://docs.aws.amazon.com/sagemaker/latest/dg/sagemaker-hyperpod-eks-install-packages-using-helm-chart.html
    """

    def __init__(self, stack: EnvironmentStack) -> None:
        super().__init__(stack, "ChartMirror")
        charts = mirrored(stack.settings)
        repositories = [_mirror_repository(stack, "Chart", chart.repository(stack.settings)) for chart in charts]
        builder = project(
            stack,
            "Charts",
            description="Mirrors Helm charts into ECR",
            # Less than its function waits: a build that outlived it would be in the way of the next deploy's.
            minutes=mirror.PATIENCE_SECONDS // 60 - 1,
            compute="BUILD_GENERAL1_SMALL",
            allow=[Allow(_PUSH, [repository.attr_arn for repository in repositories])],
            source={"type": "NO_SOURCE", "buildSpec": json.dumps(buildspec(stack.settings, charts), sort_keys=True)},
        )
        starter = function(
            stack,
            "MirrorCharts",
            handler="mirror.handler",
            description="Runs the chart mirror and waits for it",
            minutes=15,
            allow=[Allow(["codebuild:StartBuild", "codebuild:BatchGetBuilds"], [builder.attr_arn])],
        )
        wanted = [{"Name": chart.name, "Version": chart.version, "Revision": chart.revision or ""} for chart in charts]
        done = resource(
            stack,
            "MirroredCharts",
            kind="MirroredCharts",
            token=starter.function_arn,
            timeout_minutes=16,
            properties={
                "Project": builder.ref,
                "Charts": wanted,
                # A change of what is built, not of the project's name, must run it again.
                "Digest": hashlib.sha256(json.dumps(buildspec(stack.settings, charts), sort_keys=True).encode()).hexdigest()[:16],
            },
        )
        done.node.add_dependency(*repositories)


class ImageMirror(Construct):
    """Copies every container image of manifests and charts into this account's ECR: nodes without a way out pull from nowhere else.

    A build of CodeBuild's own network does it; the serving image alone is larger than what Lambda's 15 minutes allow, so a state machine
    waits for it.
    """

    def __init__(self, stack: EnvironmentStack) -> None:
        super().__init__(stack, "ImageMirror")
        settings = stack.settings
        wanted = (*images.mirrored(settings), *images.of_charts(settings).values())
        repositories = [_mirror_repository(stack, "Image", image.repository) for image in wanted]
        # AWS's own registries are private ones of other accounts, read by whoever has an account.
        foreign = sorted({image.origin.partition("/")[0] for image in wanted if ".dkr.ecr." in image.origin})
        sources = [f"arn:{stack.partition}:ecr:{host.split('.')[3]}:{host.split('.')[0]}:repository/*" for host in foreign]
        spec = json.dumps(image_buildspec(settings, wanted, foreign), sort_keys=True)
        builder = project(
            stack,
            "Mirror",
            description="Mirrors container images into ECR",
            minutes=55,
            compute="BUILD_GENERAL1_LARGE",
            docker=True,
            allow=[
                Allow(_PUSH, [repository.attr_arn for repository in repositories]),
                Allow(list(_PULL), sources, why="AWS's own registries, whose repositories only their charts name"),
            ],
            source={"type": "NO_SOURCE", "buildSpec": spec},
        )
        allow = [Allow(["codebuild:StartBuild", "codebuild:BatchGetBuilds"], [builder.attr_arn])]
        begin = function(stack, "BeginMirror", handler="mirror.begin", description="Starts the image mirror", allow=allow)
        ended = function(stack, "MirrorEnded", handler="mirror.ended", description="Looks whether the image mirror is done", allow=allow)
        provider = cr.Provider(
            stack,
            "MirrorProvider",
            on_event_handler=begin,
            is_complete_handler=ended,
            query_interval=Duration.seconds(30),
            total_timeout=Duration.minutes(57),
            log_group=begin.log_group,
        )
        done = resource(
            stack,
            "MirroredImages",
            kind="MirroredImages",
            token=provider.service_token,
            timeout_minutes=58,
            properties={
                "Project": builder.ref,
                "Images": [image.source for image in wanted],
                "Digest": hashlib.sha256(spec.encode()).hexdigest()[:16],
            },
        )
        done.node.add_dependency(*repositories)


def image_buildspec(settings: Settings, wanted: Sequence[images.Image], foreign: Sequence[str]) -> dict[str, Any]:
    """What the image mirror runs: pull, tag, push, unless that tag is there already."""
    login = "docker login --username AWS --password-stdin"
    commands = [f"aws ecr get-login-password | {login} {registry(settings)}"]
    commands += [f"aws ecr get-login-password --region {host.split('.')[3]} | {login} {host}" for host in foreign]
    for image in wanted:
        there = f"aws ecr describe-images --repository-name {image.repository} --image-ids imageTag={image.tag} >/dev/null 2>&1"
        own = f"{images.own(settings, image)}:{image.tag}"
        pull = f"docker pull --quiet --platform linux/amd64 {image.source}"
        commands.append(f"{there} || ( {pull} && docker tag {image.source} {own} && docker push --quiet {own} && docker rmi {own} )")
    return {"version": 0.2, "phases": {"build": {"commands": commands}}}


def project(
    stack: EnvironmentStack,
    construct_id: str,
    *,
    description: str,
    minutes: int,
    compute: str,
    allow: list[Allow],
    source: dict[str, Any],
    variables: dict[str, str] | None = None,
    docker: bool = False,
) -> codebuild.CfnProject:
    """A Linux project with its own role and log group; `docker` makes it privileged, which Docker inside it needs."""
    logs = log_group(stack, f"{construct_id}Logs")
    name = f"{names.PREFIX}-{stack.settings.name}-{construct_id.lower()}"
    runner = role(
        stack,
        f"{construct_id}BuildRole",
        # For this project alone: https://docs.aws.amazon.com/codebuild/latest/userguide/cross-service-confused-deputy-prevention.html
        principal=iam.ServicePrincipal(
            "codebuild.amazonaws.com",
            conditions={
                "StringEquals": {
                    "aws:SourceAccount": stack.account,
                    "aws:SourceArn": f"arn:{stack.partition}:codebuild:{stack.region}:{stack.account}:project/{name}",
                }
            },
        ),
        description=description,
        allow=[
            *allow,
            Allow(["logs:CreateLogStream", "logs:PutLogEvents"], [logs.log_group_arn], why="`:*` names the streams of this one group"),
            Allow(["ecr:GetAuthorizationToken"], ["*"], why="ECR knows no resource for this action"),
        ],
    )
    return codebuild.CfnProject(
        stack,
        f"{construct_id}Project",
        name=name,
        description=description,
        service_role=runner.role_arn,
        artifacts={"type": "NO_ARTIFACTS"},
        source=source,
        timeout_in_minutes=minutes,
        concurrent_build_limit=1,
        logs_config={"cloudWatchLogs": {"status": "ENABLED", "groupName": logs.log_group_name}},
        environment={
            "type": "LINUX_CONTAINER",
            "computeType": compute,
            "image": BUILD_IMAGE,
            "privilegedMode": docker,
            "environmentVariables": [{"name": name, "value": value} for name, value in sorted((variables or {}).items())],
        },
    )


def buildspec(settings: Settings, charts: tuple[Chart, ...]) -> dict[str, Any]:
    """What the mirror runs: fetch each chart at its pinned revision or version, push it unless that version is there already."""
    archive = f"helm-v{settings.version_set.platform.helm}-linux-amd64.tar.gz"
    commands = [
        f"curl -fsSLO https://get.helm.sh/{archive} -O https://get.helm.sh/{archive}.sha256sum",
        f"sha256sum -c {archive}.sha256sum && tar -xzf {archive} --strip-components=1 -C /usr/local/bin linux-amd64/helm",
        f"aws ecr get-login-password | helm registry login --username AWS --password-stdin {registry(settings)}",
        *(_mirror(settings, chart) for chart in charts),
    ]
    return {"version": 0.2, "phases": {"build": {"commands": commands}}}


def _mirror(settings: Settings, chart: Chart) -> str:
    """One chart. The version in ECR names the revision, so that a new revision is a new version."""
    if chart.revision:
        # Without blobs, and not shallow: a server gives a shallow copy of a full commit id only.
        fetch = [
            f"git clone -q --filter=blob:none --no-checkout {chart.origin} {chart.name}",
            f"git -C {chart.name} checkout -q {chart.revision}",
            *_rewritten(settings, chart),
            f"helm dependency update {chart.name}/{chart.path}",
            f"helm package {chart.name}/{chart.path} --version {chart.version} -d charts",
        ]
    else:
        fetch = [f"helm pull {chart.name} --repo {chart.origin} --version {chart.version} -d charts"]
    push = f"helm push charts/{chart.name}-{chart.version}.tgz oci://{registry(settings)}/{chart.prefix(settings)}"
    there = f"aws ecr describe-images --repository-name {chart.repository(settings)} --image-ids imageTag={chart.tag}"
    return f"{there} >/dev/null 2>&1 || ( {' && '.join([*fetch, push])} )"


def _rewritten(settings: Settings, chart: Chart) -> list[str]:
    """Images that a chart's templates name without a value for it, where they must come from the account's own ECR."""
    image = images.of_charts(settings).get("neuron-device-plugin")
    if image is None or chart.name != settings.version_set.platform.dependency_chart:
        return []
    templates = f"{chart.name}/{chart.path}/charts/neuron-device-plugin/templates"
    return [f"sed -i -E 's#{image.origin}:[A-Za-z0-9._-]+#{images.own(settings, image)}:{image.tag}#' {templates}/*.yaml"]


def _mirror_repository(stack: EnvironmentStack, what: str, name: str) -> ecr.CfnRepository:
    repository = ecr.CfnRepository(
        stack,
        f"{what}{''.join(part.capitalize() for part in name.rpartition('/')[2].split('-'))}",
        repository_name=name,
        image_tag_mutability="IMMUTABLE",
        image_scanning_configuration={"scanOnPush": True},
        empty_on_delete=True,
    )
    repository.apply_removal_policy(RemovalPolicy.DESTROY)
    return repository
