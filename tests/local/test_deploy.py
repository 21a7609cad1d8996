"""The unmodified CDK CLI against the local cloud: bootstrap, deploy, diff, destroy, and what becomes of a deploy that fails."""

from __future__ import annotations

import os
import resource as os_resource
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import boto3
import pytest
import yaml

from config import load
from local import lifecycle, state
from local.kubernetes.charts import ray_definitions
from tests.docs.pages import command
from tests.local import permissions

pytestmark = pytest.mark.cloud
BIN = Path(sys.executable).parent
ADDRESS = "sagemaker_ray://skyrl-visgym/training"
Inventory = dict[str, list[str]]


@dataclass
class Project:
    """Environment `local`, synthesized once, and a bootstrapped local cloud of its own."""

    assembly: Path
    environment: dict[str, str]
    bootstrapped: Inventory

    def cdk(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        return _cdk(*arguments, "--app", str(self.assembly), environment=self.environment)

    def run(self, program: str, *arguments: str) -> subprocess.CompletedProcess[str]:
        """One of the programs beside this Python, as a user runs it."""
        return subprocess.run(
            [str(BIN / program), *arguments], cwd=state.ROOT, env=self.environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
            text=True, timeout=180,
        )  # fmt: skip

    def shell(self, line: str) -> str:
        """A line of a page, as a person pastes it. Returns what it prints; fails with what it said where it fails."""
        path = f"{BIN}{os.pathsep}{os.environ.get('PATH', '')}"
        done = subprocess.run(["bash", "-c", line], cwd=state.ROOT, env={**self.environment, "PATH": path}, capture_output=True, text=True)
        assert done.returncode == 0, f"{line}: {done.stdout}{done.stderr}"
        return done.stdout

    def bootstrap(self) -> None:
        done = self.cdk("bootstrap", "aws://000000000000/us-west-2")
        assert done.returncode == 0, done.stdout

    def deploy(self) -> subprocess.CompletedProcess[str]:
        return self.cdk("deploy", "--all", "--require-approval", "never", "--concurrency", "3")

    def destroy(self) -> None:
        done = self.cdk("destroy", "--all", "--force")
        assert done.returncode == 0, done.stdout
        assert _inventory() == self.bootstrapped


def _cdk(*arguments: str, environment: dict[str, str]) -> subprocess.CompletedProcess[str]:
    command = [str(BIN / "cdk"), *arguments]
    return subprocess.run(
        command, cwd=state.ROOT, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=120
    )


def _short_wait(path: Path) -> None:
    """Environment `local`, but the wait for nodes gives up as soon as an environment can ask for."""
    settings = yaml.safe_load((state.ROOT / "environments" / "local.yaml").read_text())
    settings.setdefault("hyperpod", {})["nodes_ready_timeout_minutes"] = 5
    path.write_text(yaml.safe_dump(settings))


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Project]:
    folder = tmp_path_factory.mktemp("deploy")
    _short_wait(folder / "local.yaml")
    patch = pytest.MonkeyPatch()
    patch.setenv(state.FOLDER, str(folder / "state"))
    try:
        lifecycle.up(node_delay=0.2)
        environment = {**os.environ, **lifecycle.environment()}
        synth = _cdk("synth", "--quiet", "-c", f"env={folder / 'local.yaml'}", "-o", str(folder / "out"), environment=environment)
        assert synth.returncode == 0, synth.stdout
        made = Project(folder / "out", environment, {})
        made.bootstrap()
        made.bootstrapped = _inventory()
        yield made
    finally:
        lifecycle.down(purge=True)
        patch.undo()


@pytest.fixture(autouse=True)
def _cleared(project: Project) -> Iterator[None]:
    """Whatever a test has left: no switch, no stack."""
    yield
    lifecycle.set_faults([])
    if _inventory() != project.bootstrapped:
        project.run(
            "kubectl", "annotate", "raycluster", "--all", "-n", "training", "hyperpod-rl/may-lose-jobs=true"
        )  # of a test that failed
        project.cdk("destroy", "--all", "--force")
        project.bootstrap()


def _inventory() -> Inventory:
    """What exists; of the toolkit's bucket without the assets, which `cdk destroy` leaves there on AWS too."""
    found = lifecycle.inventory()
    objects = [name for name in found.pop("S3 object", []) if not name.startswith("s3://cdk-")]
    return {**found, "S3 object": objects} if objects else found


def _crds(folder: Path) -> Path:
    """A chart of KubeRay whose kinds are not those of the installed one, in `folder`/chart; returns where they are to be written."""
    (folder / "chart" / "crds").mkdir(parents=True)
    (folder / "chart" / "Chart.yaml").write_text("apiVersion: v2\nname: kuberay-operator\nversion: 1.8.0\n")
    for number, kind in enumerate(ray_definitions()):
        kind["metadata"]["labels"] = {"newer": "yes"}
        (folder / "chart" / "crds" / f"{number}.yaml").write_text(yaml.safe_dump(kind))
    return folder / "crds.yaml"


def _stacks() -> list[str]:
    return lifecycle.inventory().get("CloudFormation stack", [])


@pytest.mark.ray
def test_everything_is_deployed_shows_no_difference_and_is_destroyed_but_not_while_a_job_runs(
    project: Project, monkeypatch: pytest.MonkeyPatch
) -> None:
    done = project.deploy()
    assert done.returncode == 0, done.stdout
    assert all(line.endswith(" CREATE_COMPLETE") for line in _stacks())
    assert len(_stacks()) == 1 + len(list(project.assembly.glob("*.template.json")))
    env, aws = load.load(str(project.assembly.parent / "local.yaml")), lifecycle.environment()
    owner = boto3.Session(aws["AWS_ACCESS_KEY_ID"], aws["AWS_SECRET_ACCESS_KEY"], region_name=env.region)
    monkeypatch.setenv("AWS_ENDPOINT_URL", aws["AWS_ENDPOINT_URL"])
    assert permissions.problems(env, owner) == [], "a pod's role may too little or too much"
    differences = project.cdk("diff", "--all", "--fail")
    assert differences.returncode == 0, differences.stdout
    assert "Number of stacks with differences: 0" in differences.stdout
    again = project.deploy()
    assert again.returncode == 0, again.stdout
    assert "(no changes)" in again.stdout

    up = project.run("hyperpod-rl", "cluster", "up")
    assert up.returncode == 0, up.stdout
    # A task on a worker, with its pod's identity: the run's code is there, and it writes to /shared and to the bucket.
    checked = project.run("hyperpod-rl", "preflight", "--run-id", "maze")
    assert checked.returncode == 0, checked.stdout
    assert "checked    a task on a worker: imports local.trainer, writes /shared and the bucket" in checked.stdout
    assert "worker-" not in checked.stdout, checked.stdout
    submitted = project.run("ray", "job", "submit", "--address", ADDRESS, "--no-wait", "--submission-id", "maze-a1", "--", "sleep", "600")
    assert submitted.returncode == 0, submitted.stdout

    before_status = os_resource.getrusage(os_resource.RUSAGE_CHILDREN)
    status = project.run("hyperpod-rl", "status")
    after_status = os_resource.getrusage(os_resource.RUSAGE_CHILDREN)
    assert status.returncode == 0, status.stdout
    # Processor time, spread over two cores: 3 s on the clock where nobody else works.
    assert after_status.ru_utime + after_status.ru_stime - before_status.ru_utime - before_status.ru_stime < 4
    assert [word in status.stdout for word in ("8: all complete", "workers     ml.g7e.12xlarge: 2 of 2 instances, 2 Ready", "maze")] == [
        True
    ] * 3
    before = project.run("hyperpod-rl", "leaks", "--before-destroy")
    assert before.returncode == 1, before.stdout
    assert "refused  run maze has not ended: hyperpod-rl stop maze" in before.stdout
    assert "Data: the file system with all of /shared" in before.stdout
    leaks = project.run("hyperpod-rl", "leaks")
    standing, last = leaks.stdout.splitlines()[-2:]
    assert (leaks.returncode, last) == (0, "nothing is left beside them")
    assert standing.startswith("8 stacks still stand (Network, Data, ")

    # Meanwhile a person follows the page on upgrades: newer kinds of KubeRay leave what is there alone.
    crds = _crds(project.assembly.parent)
    show = command("11-upgrade.md", "helm show crds", VERSION="1.8.0").replace("crds.yaml", str(crds))
    project.shell(show.replace("kuberay-operator --repo https://ray-project.github.io/kuberay-helm/", str(crds.with_name("chart"))))
    project.shell(command("11-upgrade.md", "kubectl apply --server-side --force-conflicts").replace("crds.yaml", str(crds)))
    assert project.shell("kubectl get crd rayclusters.ray.io -o jsonpath={.metadata.labels.newer}") == "yes"

    refused = project.cdk("destroy", "--all", "--force")
    assert refused.returncode != 0
    said = " ".join(refused.stdout.split())
    assert "nothing was deleted: RayCluster training/skyrl-visgym runs maze-a1. Stop the run (hyperpod-rl stop RUN)" in said
    assert "hyperpod-rl-local-Platform DELETE_FAILED" in _stacks()
    jobs = project.run("ray", "job", "status", "maze-a1", "--address", ADDRESS)
    assert "RUNNING" in jobs.stdout

    # Told that it may be lost; an endpoint (whose pods no node can take) behind a load balancer; and what a person may have done by
    # hand meanwhile.
    endpoint = yaml.safe_load((state.ROOT / "dist/local/rayservice/00-rayservice-serving-maze-vlm.yaml").read_text())
    for group in (endpoint["spec"]["rayClusterConfig"]["headGroupSpec"], *endpoint["spec"]["rayClusterConfig"]["workerGroupSpecs"]):
        group["template"]["spec"]["nodeSelector"] = {"nobody": "has-this"}
    service = {"type": "LoadBalancer", "ports": [{"port": 80}], "selector": {"app": "front"}}
    front = {"apiVersion": "v1", "kind": "Service", "metadata": {"name": "front", "namespace": "serving"}, "spec": service}
    file = project.assembly.parent / "front.yaml"
    file.write_text(yaml.safe_dump_all([endpoint, front]))
    applied = project.run("kubectl", "apply", "--server-side", "-f", str(file))
    assert applied.returncode == 0, applied.stdout
    project.shell(command("10-teardown.md", "kubectl annotate raycluster"))
    systems = project.run("aws", "fsx", "describe-file-systems", "--query", "FileSystems[].FileSystemId", "--output", "text").stdout.split()
    assert project.run("aws", "fsx", "delete-file-system", "--file-system-id", systems[-1]).returncode == 0
    chart = "hyperpod-rl-local/charts/hyperpod-helm-chart"
    assert project.run("aws", "ecr", "delete-repository", "--force", "--repository-name", chart).returncode == 0
    project.destroy()
    assert project.run("hyperpod-rl", "leaks").returncode == 0


def test_a_resource_that_fails_rolls_its_stack_back_and_destroy_leaves_nothing(project: Project) -> None:
    lifecycle.set_faults([{"resource": "AWS::FSx::FileSystem", "action": "create", "fail": "no capacity in usw2-az2"}])
    failed = project.deploy()
    assert failed.returncode != 0
    assert "no capacity in usw2-az2" in failed.stdout
    assert "hyperpod-rl-local-Data ROLLBACK_COMPLETE" in _stacks()
    assert "FSx file system" not in lifecycle.inventory()
    project.destroy()


def test_nodes_that_do_not_come_are_told_with_the_events_of_the_cluster_and_kept_waiting_for(project: Project) -> None:
    lifecycle.set_faults([{"instance_group": "workers", "missing": 1}])
    failed = project.deploy()
    assert failed.returncode != 0
    said = " ".join(failed.stdout.split())
    assert "group workers has 1 of 2 instances running" in said
    assert "Insufficient capacity for ml.g7e.12xlarge in instance group workers" in said
    assert "Operation timed out" not in said
    assert "hyperpod-rl-local-HyperPod CREATE_COMPLETE" in _stacks(), "the cluster is kept"
    # Again, once the cause is mended: it goes on from there. That it stops at the next two stacks is for the destroy.
    lifecycle.set_faults(
        [{"resource": kind, "action": "create", "fail": "injected"} for kind in ("Custom::Drain", "AWS::CloudWatch::Alarm")]
    )
    further = project.deploy()
    assert further.returncode != 0
    assert "hyperpod-rl-local-NodesReady CREATE_COMPLETE" in _stacks(), further.stdout
    assert "hyperpod-rl-local-Platform ROLLBACK_COMPLETE" in _stacks()
    lifecycle.set_faults([])
    project.destroy()
    assert project.run("hyperpod-rl", "leaks").returncode == 0


# One resource of each stack that no test above lets fail (Data, Platform, Observability); two that come up side by side fail together.
STOPS = {
    "Network": ["AWS::EC2::NatGateway"],
    "Cluster and Telemetry": ["AWS::EKS::Cluster", "AWS::Grafana::Workspace"],
    "HyperPod": ["AWS::SageMaker::Cluster"],
    "NodesReady": ["Custom::NodesReady"],
}


@pytest.mark.parametrize("types", STOPS.values(), ids=STOPS)
def test_a_deploy_that_stopped_at_a_stack_is_destroyed_whole(project: Project, types: list[str]) -> None:
    lifecycle.set_faults([{"resource": kind, "action": "create", "fail": "injected"} for kind in types])
    failed = project.deploy()
    assert failed.returncode != 0
    assert any("ROLLBACK_COMPLETE" in line for line in _stacks()), failed.stdout
    lifecycle.set_faults([])
    project.destroy()
    assert project.run("hyperpod-rl", "leaks").returncode == 0


def test_nothing_is_left_after_the_bootstrap_is_undone(project: Project) -> None:
    assert "S3 bucket" in lifecycle.inventory()
    lifecycle.remove_bootstrap()
    assert lifecycle.inventory() == {}
