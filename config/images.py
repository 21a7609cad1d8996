"""Container images that are not ours: where they come from, and where the nodes of a closed network pull them from instead."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from config import names
from config.environment import Environment


@dataclass(frozen=True)
class Image:
    """An image of somebody else's, and its ECR repository in an environment whose network has no way out."""

    origin: str
    tag: str
    repository: str

    @property
    def source(self) -> str:
        """What to pull where there is a way to the internet."""
        return f"{self.origin}:{self.tag}"


def base(env: Environment) -> str:
    """The training image's base: by digest where the environment pins it, since its tag is `latest`."""
    origin = env.version_set.training.base
    return f"{origin}@{env.image.base_digest}" if env.image.base_digest else origin


def build_arguments(env: Environment) -> Mapping[str, str]:
    """What docker/Dockerfile takes, by the names of its arguments."""
    training = env.version_set.training
    return {
        "BASE": base(env),
        "VERSION_SET": env.version_set.name,
        "RAY_VERSION": training.ray,
        "SKYRL_REF": training.skyrl_commit,
        "VISGYM_REF": training.visgym_commit,
        "PYGAME_VERSION": training.pygame,
        "TOOLKIT_VERSION": training.toolkit,
    }


def registry(env: Environment) -> str:
    """Host of the account's private ECR."""
    return names.image_uri(env).partition("/")[0]


def shell(env: Environment) -> str:
    """Image of the one-shot Jobs of the platform."""
    return _uri(env, _shell(env))


def serving(env: Environment) -> str:
    """Image of the endpoint."""
    return _uri(env, _serving(env))


def mirrored(env: Environment) -> tuple[Image, ...]:
    """Images that the account's ECR must hold before a pod can start: none unless the network is closed."""
    return (_shell(env), _serving(env)) if env.network.egress == "closed" else ()


def of_charts(env: Environment) -> Mapping[str, Image]:
    """Images of the charts that the environment installs, by what they are; none unless the network is closed."""
    if env.network.egress != "closed":
        return {}
    wanted = {"kuberay", "nvidia-device-plugin", "efa-device-plugin", "neuron-device-plugin", "health-monitoring-agent"}
    wanted |= {"mpi-operator", "training-operator"}
    if env.remote_access.domain is not None or env.serving.authentication == "internal-load-balancer":
        wanted.add("load-balancer-controller")
    if env.remote_access.domain is not None or env.remote_access.endpoint_operator:
        wanted.add("endpoint-operator")
    known = env.version_set.platform.chart_images
    return {name: _image(env, known[name]) for name in sorted(wanted)}


def own(env: Environment, image: Image) -> str:
    """Repository of a mirrored image in the account's ECR, with the registry and without a tag."""
    return f"{registry(env)}/{image.repository}"


def _image(env: Environment, uri: str) -> Image:
    origin, _, tag = uri.rpartition(":")
    return Image(origin, tag, _repository(env, origin))


def _shell(env: Environment) -> Image:
    return _image(env, env.version_set.platform.shell_image)


def _serving(env: Environment) -> Image:
    image = env.version_set.serving
    return Image(image.repository, image.tag, _repository(env, image.repository))


def _repository(env: Environment, origin: str) -> str:
    return f"{names.PREFIX}-{env.name}/images/{origin.rpartition('/')[2]}"


def _uri(env: Environment, image: Image) -> str:
    return f"{own(env, image)}:{image.tag}" if image in mirrored(env) else image.source
