"""Each environment in the local cloud: deployed, changed as one changes it, refused what would destroy it, destroyed."""

from __future__ import annotations

import copy
import json
import re
import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from config import names
from config.environment import Environment
from local import lifecycle, state
from tests.stacks.conftest import changed
from tools.deployment import Assembly, Cloud, synthesize, zipped

pytestmark = pytest.mark.cloud
ENVIRONMENTS = ("reference", "production", "local")
SMALL, LARGE = 1200, 2400


@pytest.fixture(scope="module", autouse=True)
def daemon(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    patch = pytest.MonkeyPatch()
    patch.setenv(state.FOLDER, str(tmp_path_factory.mktemp("updates")))
    try:
        lifecycle.up(node_delay=0.05)
        yield
    finally:
        lifecycle.down(purge=True)
        patch.undo()


@dataclass
class Deployment:
    """One environment, and what of it is deployed."""

    name: str
    folder: Path
    settings: Environment
    cloud: Cloud
    made: Assembly

    def change(self, changes: dict[str, object], addon: str | None = None) -> dict[str, str]:
        """Deploy the environment with other values; returns the status of each stack that changed."""
        settings = changed(self.name, {**self.base, **changes})
        folder = self.folder / f"out{len(list(self.folder.iterdir()))}"
        wanted = synthesize(settings, folder)
        if addon:
            _addon(wanted, addon)["AddonVersion"] = "v99.0.0-eksbuild.1"
        self.cloud.prepare(wanted)
        states = {
            stack: self.cloud.update(stack, template)
            for stack, template in wanted.templates.items()
            if template != self.made.templates[stack]
        }
        if all(status == "UPDATE_COMPLETE" for status in states.values()):
            self.made, self.settings = wanted, settings
        return states

    @property
    def base(self) -> dict[str, object]:
        return base(self.name)

    def own(self, line: str) -> bool:
        """Whether a line of the inventory is of this environment's account."""
        return ("(account" not in line) if self.settings.local else f"(account {self.settings.account})" in line

    def groups(self) -> dict[str, int]:
        """Instances of each group, as SageMaker has them."""
        found = self.cloud.client("sagemaker").describe_cluster(ClusterName=names.hyperpod_cluster(self.settings))
        return {group["InstanceGroupName"]: group["CurrentCount"] for group in found["InstanceGroups"]}

    def capacities(self) -> list[tuple[str, int]]:
        found = self.cloud.client("fsx").describe_file_systems()["FileSystems"]
        own = {"Key": "Name", "Value": names.file_system(self.settings)}
        return [(system["FileSystemId"], system["StorageCapacity"]) for system in found if own in system["Tags"]]


def base(name: str) -> dict[str, object]:
    """Where every environment begins: three workers and the smallest file system."""
    return {"storage.file_system.capacity_gib": SMALL, "instance_groups.2.count": 3}


def _addon(assembly: Assembly, name: str) -> Any:
    (found,) = [
        body["Properties"]
        for template in assembly.templates.values()
        for body in template["Resources"].values()
        if body["Type"] == "AWS::EKS::Addon" and body["Properties"]["AddonName"] == name
    ]
    return found


@pytest.fixture(params=ENVIRONMENTS)
def deployment(request: pytest.FixtureRequest, tmp_path: Path) -> Deployment:
    settings = changed(request.param, base(request.param))
    made = synthesize(settings, tmp_path / "out")
    cloud = Cloud(settings)
    cloud.prepare(made)
    for stack, template in made.templates.items():
        status = cloud.create(stack, template)
        assert status == "CREATE_COMPLETE", f"{stack}: {cloud.failures(stack)}"
    return Deployment(request.param, tmp_path, settings, cloud, made)


def test_it_is_changed_as_one_changes_it_and_destroyed(deployment: Deployment) -> None:
    ((file_system, _),) = deployment.capacities()
    counts = deployment.groups()
    assert counts["workers"] == 3

    _dashboard_changes_and_comes_back(deployment)

    states = deployment.change({"instance_groups.2.count": 4, "storage.file_system.capacity_gib": LARGE}, addon="metrics-server")
    assert set(states.values()) == {"UPDATE_COMPLETE"}, states
    assert {"Data", "HyperPod", "NodesReady", "Platform"} <= set(states)
    assert deployment.groups() == {**counts, "workers": 4}
    assert deployment.capacities() == [(file_system, LARGE)], "the same file system, grown"
    eks = deployment.cloud.client("eks")
    described = eks.describe_addon(clusterName=names.eks_cluster(deployment.settings), addonName="metrics-server")["addon"]
    assert described["addonVersion"] == "v99.0.0-eksbuild.1"

    large = {"storage.file_system.capacity_gib": LARGE}
    for count in (0, 3):
        states = deployment.change({"instance_groups.2.count": count, **large})
        assert set(states.values()) == {"UPDATE_COMPLETE"}, states
        assert deployment.groups() == {**counts, "workers": count}

    _refused_without_harm(deployment, file_system)

    for stack in reversed(list(deployment.made.templates)):
        assert deployment.cloud.delete(stack) == "DELETE_COMPLETE", f"{stack}: {deployment.cloud.failures(stack)}"
    kept = deployment.capacities()
    assert bool(kept) is (deployment.settings.storage.removal == "retain")


def _dashboard_changes_and_comes_back(deployment: Deployment) -> None:
    """One dashboard fewer, and all of them again: Grafana then holds just that."""

    def shown() -> set[str]:
        return {line for line in lifecycle.inventory().get("Grafana object", []) if deployment.own(line)}

    before = shown()
    template = deployment.made.templates["Observability"]
    (content,) = [body["Properties"] for body in template["Resources"].values() if body["Type"] == "Custom::GrafanaContent"]
    # The function's role may read this one object, so its policy changes with it.
    fewer = json.loads(json.dumps(template).replace(content["Key"], "fewer.zip"))
    files = json.loads((deployment.made.folder / "Observability.assets.json").read_text())["files"].values()
    (source,) = [asset["source"]["path"] for asset in files for to in asset["destinations"].values() if to["objectKey"] == content["Key"]]
    folder = deployment.folder / f"fewer{len(list(deployment.folder.iterdir()))}"
    shutil.copytree(deployment.made.folder / source, folder)
    next(path for path in sorted(folder.rglob("*.json")) if '"panels"' in path.read_text()).unlink()
    deployment.cloud.client("s3").put_object(Bucket=content["Bucket"], Key="fewer.zip", Body=zipped(folder))
    status = deployment.cloud.update("Observability", fewer)
    assert status == "UPDATE_COMPLETE", deployment.cloud.failures("Observability")
    assert len(before - shown()) == 1
    assert shown() < before
    assert deployment.cloud.update("Observability", template) == "UPDATE_COMPLETE"
    assert shown() == before


# What AWS would answer with a replacement: (stack, type, property, what is said).
REPLACING = (
    ("HyperPod", "AWS::SageMaker::Cluster", "VpcConfig", r"custom-named|already exists"),
    ("Cluster", "AWS::EKS::Cluster", "RoleArn", r"custom-named|already exists"),
    ("Data", "AWS::FSx::FileSystem", "SubnetIds", "would replace the file system"),
)


def _resources() -> dict[str, list[str]]:
    """What exists; of stacks their names, since a refused update leaves another status."""
    found = lifecycle.inventory()
    return {
        kind: sorted(name.partition(" ")[0] if kind == "CloudFormation stack" else name for name in all_) for kind, all_ in found.items()
    }


def _refused_without_harm(deployment: Deployment, file_system: str) -> None:
    before = _resources()
    for stack, kind, name, said in REPLACING:
        template = copy.deepcopy(dict(deployment.made.templates[stack]))
        (resource,) = [body for body in template["Resources"].values() if body["Type"] == kind]
        value = {"VpcConfig": {"SecurityGroupIds": ["sg-0123456789abcdef0"], "Subnets": ["subnet-0123456789abcdef0"]}}.get(name)
        value = value or {"RoleArn": f"arn:aws:iam::{deployment.settings.account}:role/other"}.get(name) or ["subnet-0123456789abcdef0"]
        resource["Properties"][name] = value
        for guard in (body for body in template["Resources"].values() if body["Type"] == "Custom::Guard"):
            guard["Properties"]["Kept"]["subnet_ids"] = value
        status = deployment.cloud.update(stack, template)
        assert status == "UPDATE_ROLLBACK_COMPLETE", f"{stack}: {status}"
        assert re.search(said, " ".join(deployment.cloud.failures(stack))), deployment.cloud.failures(stack)
    # Other addresses for the nodes make a second subnet, which CloudFormation would do; nothing of it is begun.
    moved = json.loads(json.dumps(deployment.made.templates["Network"]).replace(deployment.settings.network.hyperpod_cidr, "10.2.0.0/16"))
    assert deployment.cloud.update("Network", moved) == "UPDATE_ROLLBACK_COMPLETE"
    assert any("changing hyperpod_cidr would replace the network" in why for why in deployment.cloud.failures("Network"))
    assert _resources() == before
    assert [identifier for identifier, _ in deployment.capacities()] == [file_system]
