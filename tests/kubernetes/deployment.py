"""What a deploy and the launcher do to the cluster, and what a destroy does: as steps of a test."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from k8s import manifests
from tests.kubernetes.control_plane import ControlPlane, wait_for

Json = dict[str, Any]
RAY = ("rayjobs", "rayservices", "rayclusters")


def write(folder: Path, objects: list[Json]) -> Path:
    """The objects as files, in the order of apply."""
    folder.mkdir(parents=True, exist_ok=True)
    for index, member in enumerate(objects):
        (folder / manifests.file_name(index, member)).write_text(manifests.dump(member))
    return folder


def apply(plane: ControlPlane, folder: Path, objects: list[Json]) -> str:
    """Server-side apply with strict field validation, by the same kubectl as launcher and CDK. Returns the API server's warnings."""
    done = plane.kubectl("apply", "--server-side", "--validate=strict", "--field-manager=hyperpod-rl", "-f", str(write(folder, objects)))
    return done.stderr


def versions(plane: ControlPlane, objects: list[Json]) -> dict[str, str]:
    """resourceVersion of each object: it changes with any write that changes something."""
    found = {}
    for member in objects:
        name, namespace = member["metadata"]["name"], member["metadata"].get("namespace", "")
        where = ("-n", namespace) if namespace else ()
        done = plane.kubectl("get", member["kind"], name, *where, "-o", "jsonpath={.metadata.resourceVersion}")
        found[f"{member['kind']}/{namespace}/{name}"] = done.stdout
    return found


def pods(plane: ControlPlane, namespace: str, *, role: str = "", cluster: str = "", of_ray: bool = False) -> list[Json]:
    """Pods that are not being deleted, by name: all, those of a RayCluster, those with a role in one (head or worker)."""
    wanted = {"ray.io/node-type": role, "ray.io/cluster": cluster, "ray.io/is-ray-node": "yes" if of_ray else ""}
    selector = ",".join(f"{key}={value}" for key, value in wanted.items() if value)
    found = plane.api().items(f"/api/v1/namespaces/{namespace}/pods?labelSelector={selector}")
    return sorted((pod for pod in found if not pod["metadata"].get("deletionTimestamp")), key=lambda pod: str(pod["metadata"]["name"]))


def ray(plane: ControlPlane, namespace: str, kind: str, name: str) -> Json:
    """One Ray object as the API server has it."""
    return plane.api().get(f"/apis/ray.io/v1/namespaces/{namespace}/{kind}/{name}")


def ray_path(namespace: str, kind: str, name: str = "") -> str:
    return f"/apis/ray.io/v1/namespaces/{namespace}/{kind}" + (f"/{name}" if name else "")


def remove_ray(plane: ControlPlane, namespaces: tuple[str, ...]) -> None:
    """Delete the Ray objects, as the launcher and the drain do, and wait until their pods are gone."""
    api = plane.api()
    paths = [(namespace, kind) for namespace in namespaces for kind in RAY]
    for namespace, kind in paths:
        for found in api.items(ray_path(namespace, kind)):
            api.delete(ray_path(namespace, kind, found["metadata"]["name"]))
    for namespace, kind in paths:
        wait_for(lambda at=(namespace, kind): not api.items(ray_path(*at)), f"no {kind} in {namespace}", plane.alive)
    for namespace in namespaces:
        wait_for(lambda at=namespace: not pods(plane, at, of_ray=True), f"no pods of Ray in {namespace}", plane.alive)


def remove(plane: ControlPlane, namespaces: tuple[str, ...]) -> None:
    """Delete as a destroy does: Ray objects, then namespaces, then volumes. Nothing may be left waiting for a finalizer."""
    api = plane.api()
    remove_ray(plane, namespaces)
    for namespace in namespaces:
        api.delete(f"/api/v1/namespaces/{namespace}")
    for namespace in namespaces:
        wait_for(lambda name=namespace: api.gone(f"/api/v1/namespaces/{name}"), f"namespace {namespace} is gone", plane.alive)
    for volume in api.items("/api/v1/persistentvolumes"):
        api.delete(f"/api/v1/persistentvolumes/{volume['metadata']['name']}")
    wait_for(lambda: not api.items("/api/v1/persistentvolumes"), "no volumes", plane.alive)
