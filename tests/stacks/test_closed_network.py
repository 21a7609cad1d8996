"""In a network without a way out every chart and every container image comes from the account's own ECR."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from config import images
from config.environment import Environment
from k8s import manifests
from stacks import builds, charts
from tests.stacks.assembly import Assembly, synthesize
from tests.stacks.conftest import changed

OWN = "111122223333.dkr.ecr.us-west-2.amazonaws.com/"
DOMAIN = {"name": "ray.example.com", "hosted_zone_id": "Z0123456789ABC"}
# Chart -> where its values name the images of its pods. What else it brings runs no pod of ours: roles, namespaces, kinds.
IN_VALUES = {
    "kuberay-operator": {"kuberay": ("image",)},
    "aws-load-balancer-controller": {"load-balancer-controller": ("image",)},
    "hyperpod-ray-endpoint-operator": {"endpoint-operator": ("image", "override")},
    "hyperpod-helm-chart": {
        "nvidia-device-plugin": ("nvidia-device-plugin", "image"),
        "efa-device-plugin": ("aws-efa-k8s-device-plugin", "image"),
        "health-monitoring-agent": ("health-monitoring-agent", "hmaimage"),
        "mpi-operator": ("mpi-operator", "mpiOperator", "image"),
        "training-operator": ("training-operators", "image"),
    },
}
# Named in a template of the chart, which the mirror rewrites.
IN_TEMPLATES = {"neuron-device-plugin"}


@pytest.fixture(scope="module")
def settings() -> Environment:
    """A closed network in which everything that has an image is on."""
    return changed("production", {"remote_access.domain": DOMAIN})


@pytest.fixture(scope="module")
def closed(settings: Environment, tmp_path_factory: pytest.TempPathFactory) -> Assembly:
    return synthesize(settings, tmp_path_factory.mktemp("closed"), reviewed=True)


def named(value: Any) -> Iterator[str]:
    """Every container image in Kubernetes objects."""
    if isinstance(value, Mapping):
        for key, item in value.items():
            if key == "image" and isinstance(item, str):
                yield item
            else:
                yield from named(item)
    elif isinstance(value, list):
        for item in value:
            yield from named(item)


def repositories(assembly: Assembly) -> set[str]:
    return {body["Properties"]["RepositoryName"] for body in assembly.resources("AWS::ECR::Repository").values()}


def test_every_image_of_every_manifest_is_in_a_repository_of_ours(settings: Environment, closed: Assembly) -> None:
    found = {image for objects in manifests.charts(settings).values() for item in objects for image in named(item)}
    assert len(found) >= 3
    outside = {image for image in found if not image.startswith(OWN)}
    assert outside == set()
    paths = {image.removeprefix(OWN).partition("@")[0].rpartition(":")[0] or image.removeprefix(OWN) for image in found}
    assert paths - repositories(closed) == set()


def test_every_image_of_every_chart_is_in_a_repository_of_ours(settings: Environment, closed: Assembly) -> None:
    wanted = images.of_charts(settings)
    seen = set(IN_TEMPLATES)
    for name, body in closed.resources("Custom::AWSCDK-EKS-HelmChart").items():
        chart = body["Properties"]["Chart"].rpartition("/")[2]
        values = body["Properties"]["Values"]
        for image, path in IN_VALUES[chart].items():
            found = _at(_loaded(values), path)
            uri = found if isinstance(found, str) else f"{found['repository']}:{found['tag']}"
            assert uri == f"{images.own(settings, wanted[image])}:{wanted[image].tag}", f"{name}: {image}"
            assert uri.removeprefix(OWN).rpartition(":")[0] in repositories(closed)
            seen.add(image)
    assert seen == set(wanted) == set(settings.version_set.platform.chart_images)


def _loaded(values: Any) -> dict[str, Any]:
    if isinstance(values, str):
        return dict(json.loads(values))
    return dict(json.loads("".join(part if isinstance(part, str) else "a-reference" for part in values["Fn::Join"][1])))


def _at(values: Any, path: tuple[str, ...]) -> Any:
    for step in path:
        values = values[step]
    return values


def test_the_mirror_copies_each_image_from_where_it_is(settings: Environment, closed: Assembly) -> None:
    (project,) = [body["Properties"] for name, body in closed.resources("AWS::CodeBuild::Project").items() if "MirrorProject" in name]
    spec = project["Source"]["BuildSpec"]
    commands = json.loads(spec)["phases"]["build"]["commands"]
    everything = (*images.mirrored(settings), *images.of_charts(settings).values())
    assert len(everything) >= 11
    for image in everything:
        (command,) = [line for line in commands if f"--repository-name {image.repository} " in line]
        assert f"docker pull --quiet --platform linux/amd64 {image.source} " in command
        assert f"docker push --quiet {images.own(settings, image)}:{image.tag} " in command
    logins = [line for line in commands if "docker login" in line]
    registries = {line.rsplit(" ", 1)[1] for line in logins}
    assert {image.origin.partition("/")[0] for image in everything if ".dkr.ecr." in image.origin} <= registries
    assert project["Environment"]["PrivilegedMode"] is True
    assert "VpcConfig" not in project, "inside the closed network it would reach nothing"


def test_images_are_there_before_the_first_node(closed: Assembly) -> None:
    from tests.stacks.assembly import graph

    (cluster,) = closed.resources("AWS::SageMaker::Cluster")
    (mirrored,) = closed.resources("Custom::MirroredImages")
    assert mirrored in graph(closed).before(cluster)


def test_an_image_that_a_template_names_is_rewritten(settings: Environment, tmp_path: Path) -> None:
    chart = charts.dependency_chart(settings)
    (command,) = builds._rewritten(settings, chart)
    template = tmp_path / chart.name / chart.path / "charts/neuron-device-plugin/templates/plugin.yaml"
    template.parent.mkdir(parents=True)
    template.write_text("      - image: public.ecr.aws/neuron/neuron-device-plugin:2.18.3.0\n        name: plugin\n")
    subprocess.run(["bash", "-c", command], cwd=tmp_path, check=True)
    image = images.of_charts(settings)["neuron-device-plugin"]
    assert template.read_text() == f"      - image: {images.own(settings, image)}:{image.tag}\n        name: plugin\n"


def test_an_open_network_mirrors_no_image_and_lets_charts_name_their_own(reference: Assembly) -> None:
    assert reference.resources("Custom::MirroredImages") == {}
    for body in reference.resources("Custom::AWSCDK-EKS-HelmChart").values():
        assert OWN not in json.dumps(body["Properties"].get("Values", ""))
