"""The platform chart: storage that outlives a growing file system, ports that are guarded, a Job that may run twice."""

from __future__ import annotations

import os
import stat
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

from config import images, names, series
from config.environment import Environment
from config.load import load
from k8s import manifests, platform
from tests.k8s.conftest import Objects
from tests.k8s.test_manifests import pod_templates

Edit = Callable[..., Environment]


def of_kind(objects: Objects, kind: str) -> dict[str, dict[str, Any]]:
    """Objects of a kind in the platform chart, by namespace/name."""
    return {
        "/".join(filter(None, (member["metadata"].get("namespace"), member["metadata"]["name"]))): member
        for member in objects["platform"]
        if member["kind"] == kind
    }


def test_growing_the_file_system_changes_no_object(edited: Edit) -> None:
    small, large = edited(("capacity_gib: 4800", "capacity_gib: 1200")), edited(("capacity_gib: 4800", "capacity_gib: 9600"))
    assert manifests.charts(small) == manifests.charts(large)


def test_each_claim_has_a_volume_of_its_own(environment: Environment, objects: Objects) -> None:
    volumes, claims = of_kind(objects, "PersistentVolume"), of_kind(objects, "PersistentVolumeClaim")
    assert set(claims) == {f"{namespace}/{names.SHARED_CLAIM}" for namespace in environment.namespaces}
    assert len(volumes) == len(claims)
    for claim in claims.values():
        volume = volumes[claim["spec"]["volumeName"]]
        reference = volume["spec"]["claimRef"]
        assert (reference["namespace"], reference["name"]) == (claim["metadata"]["namespace"], claim["metadata"]["name"])
        assert volume["spec"]["capacity"]["storage"] == claim["spec"]["resources"]["requests"]["storage"]
        assert volume["spec"]["persistentVolumeReclaimPolicy"] == "Retain"
        assert volume["spec"]["accessModes"] == claim["spec"]["accessModes"] == ["ReadWriteMany"]
        assert volume["spec"]["storageClassName"] == claim["spec"]["storageClassName"] == "", "a class would provision another file system"


def test_namespaces_enforce_pod_security(environment: Environment, objects: Objects) -> None:
    for namespace in of_kind(objects, "Namespace").values():
        labels = namespace["metadata"]["labels"]
        assert labels["pod-security.kubernetes.io/enforce"] == "baseline"
        assert labels["pod-security.kubernetes.io/enforce-version"] == f"v{environment.version_set.platform.kubernetes}"


def reached_by(policy: dict[str, Any], port: int) -> list[Any]:
    """Who may reach a port under a policy; an entry without ports is for all of them."""
    return [
        peer
        for rule in policy["spec"]["ingress"]
        if "ports" not in rule or any(entry["port"] == port for entry in rule["ports"])
        for peer in rule["from"]
    ]


def test_jobs_port_is_open_to_ray_the_supervisor_the_endpoint_operator_kuberay_and_the_control_plane_alone(
    environment: Environment, objects: Objects
) -> None:
    policies = of_kind(objects, "NetworkPolicy")
    guard = policies.pop(f"{environment.ray_cluster.namespace}/{names.SUPERVISOR_SERVICE_ACCOUNT}")
    assert len(policies) == len(environment.namespaces)
    (pod,) = [template for name, template in pod_templates({"supervisor": objects["supervisor"]})]
    chosen = guard["spec"]["podSelector"]["matchLabels"]
    assert chosen.items() <= pod["metadata"]["labels"].items()
    (peer,) = reached_by(guard, series.METRICS_PORT)
    assert peer["namespaceSelector"]["matchLabels"] == {"kubernetes.io/metadata.name": names.OBSERVABILITY_NAMESPACE}
    for where, policy in policies.items():
        assert policy["spec"]["podSelector"] == {"matchLabels": {"ray.io/is-ray-node": "yes"}}
        assert policy["spec"]["policyTypes"] == ["Ingress"]
        peers = reached_by(policy, names.DASHBOARD_PORT)
        of_training = [chosen] if where.startswith(f"{environment.ray_cluster.namespace}/") else []
        ray = {"ray.io/is-ray-node": "yes"}
        assert [peer["podSelector"]["matchLabels"] for peer in peers if "podSelector" in peer] == [ray, *of_training]
        spaces = [peer["namespaceSelector"]["matchLabels"]["kubernetes.io/metadata.name"] for peer in peers if "namespaceSelector" in peer]
        assert sorted(spaces) == ["hyperpod-ray", "kuberay"]
        # Where the API server's interfaces are, and no pod: pods live in network.hyperpod_cidr.
        assert [peer["ipBlock"] for peer in peers if "ipBlock" in peer] == [{"cidr": environment.network.cidr}]


def test_endpoint_is_open_to_its_own_namespace_and_to_training(objects: Objects) -> None:
    policies = of_kind(objects, "NetworkPolicy")
    assert {"podSelector": {}} in reached_by(policies["serving/ray"], names.SERVE_PORT)
    assert {"podSelector": {}} not in reached_by(policies["training/ray"], names.SERVE_PORT)


def test_readers_cannot_change_anything(objects: Objects) -> None:
    roles = of_kind(objects, "Role")
    assert roles
    for role in roles.values():
        for rule in role["rules"]:
            assert set(rule["verbs"]) <= {"get", "list", "watch"}
            assert not {"secrets", "pods/exec", "pods/portforward", "*"} & set(rule["resources"])


def test_quota_holds_the_gpus_of_a_namespace_and_the_second_endpoint_of_an_upgrade(objects: Objects, environment: Environment) -> None:
    quotas = {name: quota["spec"]["hard"]["requests.nvidia.com/gpu"] for name, quota in of_kind(objects, "ResourceQuota").items()}
    assert quotas == {"training/gpus": str(environment.training_gpus), "serving/gpus": "2"}


def test_disruption_budget_selects_the_endpoints_workers(objects: Objects) -> None:
    ((_, budget),) = of_kind(objects, "PodDisruptionBudget").items()
    (service,) = objects["rayservice"]
    cluster = service["spec"]["rayClusterConfig"]
    wanted = budget["spec"]["selector"]["matchLabels"].items()
    assert wanted <= cluster["workerGroupSpecs"][0]["template"]["metadata"]["labels"].items()
    assert not wanted <= cluster["headGroupSpec"]["template"]["metadata"]["labels"].items()
    # A number: KubeRay's kinds have no scale, of which a share could be taken. A pod that answers nobody holds no drain up.
    assert (budget["spec"]["minAvailable"], budget["spec"]["unhealthyPodEvictionPolicy"]) == (1, "AlwaysAllow")


def test_one_namespace_for_both_makes_each_object_once(edited: Edit) -> None:
    made = manifests.charts(edited(("tags:\n", "serving: {namespace: training}\ntags:\n")))
    keys = [(m["kind"], m["metadata"].get("namespace"), m["metadata"]["name"]) for m in made["platform"]]
    assert len(keys) == len(set(keys))
    accounts = {key[2] for key in keys if key[0] == "ServiceAccount"}
    assert accounts == {
        names.TRAINING_SERVICE_ACCOUNT, names.SERVING_SERVICE_ACCOUNT, names.RELEASE_SERVICE_ACCOUNT, names.SUPERVISOR_SERVICE_ACCOUNT,
    }  # fmt: skip


def test_prepare_job_gets_a_new_name_with_new_content(edited: Edit) -> None:
    def name(env: Environment) -> str:
        (found,) = [m["metadata"]["name"] for m in manifests.charts(env)["platform"] if m["kind"] == "Job"]
        return found

    assert name(edited()) == name(edited(("count: 3", "count: 4")))
    moved = edited(("mount_path: /shared", "mount_path: /fsx"), ("training:\n", "training:\n  base_model: /fsx/models/visgym\n"))
    assert name(edited()) != name(moved)


def test_prepare_script_runs_twice_and_ends_with_its_marker(tmp_path: Path) -> None:
    commands, mount = tmp_path / "bin", tmp_path / "mount"
    commands.mkdir()
    mount.mkdir()
    log = tmp_path / "chown.log"
    chown = commands / "chown"
    chown.write_text(f'#!/bin/sh\necho "$@" >> {log}\n')  # only root may give files away
    chown.chmod(0o755)
    variables = {**os.environ, "PATH": f"{commands}:{os.environ['PATH']}"}
    for _ in range(2):
        subprocess.run(["/bin/sh", "-c", platform.prepare_script(str(mount))], check=True, env=variables)
    assert {path.name for path in mount.iterdir()} == {"models", "datasets", "runs", "cache", ".prepared"}
    assert all(stat.S_IMODE((mount / folder).stat().st_mode) == 0o775 for folder in platform.FOLDERS)
    owners = log.read_text().splitlines()
    assert owners[0] == f"1000:1000 {mount} " + " ".join(f"{mount}/{folder}" for folder in platform.FOLDERS)


def test_prepare_script_leaves_no_marker_when_it_fails(tmp_path: Path) -> None:
    commands, mount = tmp_path / "bin", tmp_path / "mount"
    commands.mkdir()
    mount.mkdir()
    (commands / "chown").write_text("#!/bin/sh\nexit 1\n")
    (commands / "chown").chmod(0o755)
    variables = {**os.environ, "PATH": f"{commands}:{os.environ['PATH']}"}
    assert subprocess.run(["/bin/sh", "-c", platform.prepare_script(str(mount))], env=variables).returncode != 0
    assert not (mount / ".prepared").exists()


def test_prepare_job_runs_where_there_are_nodes() -> None:
    env = load("reference")
    paused = env.model_copy(
        update={"instance_groups": tuple(g.model_copy(update={"count": 0}) if g.role == "system" else g for g in env.instance_groups)}
    )
    for made, group in ((env, "system"), (paused, "head")):
        (job,) = [m for m in manifests.charts(made)["platform"] if m["kind"] == "Job"]
        assert job["spec"]["template"]["spec"]["nodeSelector"] == {"sagemaker.amazonaws.com/instance-group-name": group}


def test_a_closed_network_pulls_from_its_own_registry_alone() -> None:
    env = load("production")
    assert env.network.egress == "closed"
    registry = f"{env.account}.dkr.ecr.{env.region}.amazonaws.com/"
    pods = [template["spec"] for _, template in pod_templates(manifests.charts(env))]
    pulled = {container["image"] for pod in pods for container in pod["containers"]}
    assert len(pulled) == 3
    assert all(image.startswith(registry) for image in pulled)
    expected = {f"{registry}{image.repository}:{image.tag}" for image in images.mirrored(env)} | {names.image_uri(env)}
    assert pulled == expected, "what is pulled is what must be mirrored"


def test_an_open_network_mirrors_nothing(reference: Environment) -> None:
    assert images.mirrored(reference) == ()
    assert images.shell(reference) == reference.version_set.platform.shell_image
    assert images.serving(reference).startswith("public.ecr.aws/deep-learning-containers/ray:")
