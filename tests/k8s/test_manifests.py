"""The files below dist/: the same bytes every time, nothing stale, and what Kubernetes 1.34 takes."""

from __future__ import annotations

import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import kubernetes_validate
import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from config import kubernetes_rules, placeholders
from config.environment import Environment
from config.load import ROOT, load
from k8s import manifests
from k8s.__main__ import main
from tests.k8s.conftest import Objects

RAY_KINDS = {"RayCluster", "RayService", "RayJob"}


def pod_templates(objects: Objects) -> list[tuple[str, dict[str, Any]]]:
    """Every pod template in the manifests, with a name for messages."""
    found = []
    for members in objects.values():
        for member in members:
            spec = member.get("spec", {})
            cluster = spec.get("rayClusterConfig") or spec.get("rayClusterSpec") or spec
            if "headGroupSpec" in cluster:
                found.append((f"{member['kind']} head", cluster["headGroupSpec"]["template"]))
                found += [(f"{member['kind']} {group['groupName']}", group["template"]) for group in cluster["workerGroupSpecs"]]
            elif member["kind"] in ("Job", "Deployment"):
                found.append((member["metadata"]["name"], spec["template"]))
    return found


def test_two_writes_give_the_same_bytes(environment: Environment, tmp_path: Path) -> None:
    first, second = (manifests.write(environment, tmp_path / name) for name in ("one", "two"))
    names = [sorted(path.relative_to(folder).as_posix() for path in folder.rglob("*.yaml")) for folder in (first, second)]
    assert names[0] == names[1] != []
    assert all((first / name).read_bytes() == (second / name).read_bytes() for name in names[0])
    assert manifests.digest(first) == manifests.digest(second)


def test_bytes_depend_on_no_folder_and_no_hash_seed(tmp_path: Path) -> None:
    digests = set()
    for seed, folder in (("0", ROOT), ("1", tmp_path)):
        code = (
            f"import sys; sys.path.insert(0, {str(ROOT)!r}); from pathlib import Path; "
            "from config.load import load; from k8s import manifests;"
            f"print(manifests.digest(manifests.write(load('reference'), Path({str(tmp_path / seed)!r}))))"
        )
        run = subprocess.run(
            [sys.executable, "-c", code], cwd=folder, env={**os.environ, "PYTHONHASHSEED": seed}, capture_output=True, text=True
        )
        assert run.returncode == 0, run.stderr
        digests.add(run.stdout)
    assert len(digests) == 1


def test_stale_files_go_and_right_files_stay(reference: Environment, tmp_path: Path) -> None:
    folder = manifests.write(reference, tmp_path)
    before = manifests.digest(folder)
    kept = next(folder.rglob("*raycluster*.yaml"))
    os.utime(kept, (1, 1))
    (folder / "old" / "deep").mkdir(parents=True)
    for stale in (folder / "old" / "deep" / "00-configmap-x.yaml", folder / "raycluster" / "01-raycluster-training-former.yaml"):
        stale.write_text("kind: Left\n")
    assert manifests.digest(folder) != before
    manifests.write(reference, tmp_path)
    assert manifests.digest(folder) == before
    assert not (folder / "old").exists()
    assert kept.stat().st_mtime == 1, "a file that is right is not written again"


def test_writers_at_once_do_not_disturb_each_other(reference: Environment, tmp_path: Path) -> None:
    made = manifests.charts(reference)
    with pytest.MonkeyPatch.context() as patch, ThreadPoolExecutor(4) as pool:
        patch.setattr(manifests, "charts", lambda _: made)  # cdk8s itself runs in one thread
        folders = list(pool.map(lambda _: manifests.write(reference, tmp_path), range(12)))
    assert {path.relative_to(tmp_path).as_posix() for path in set(folders)} == {"dist/reference"}
    assert manifests.digest(folders[0]) == manifests.digest(manifests.write(reference, tmp_path / "alone"))
    assert [path.name for path in (tmp_path / "dist").iterdir()] == ["reference"]


def test_digest_sees_a_name_and_a_byte(reference: Environment, tmp_path: Path) -> None:
    folder = manifests.write(reference, tmp_path)
    before = manifests.digest(folder)
    path = next(folder.rglob("*.yaml"))
    content = path.read_bytes()
    path.write_bytes(content + b" ")
    assert manifests.digest(folder) != before
    path.write_bytes(content)
    path.rename(path.with_name("99-other.yaml"))
    assert manifests.digest(folder) != before


def test_files_hold_the_objects_in_order_of_apply(environment: Environment, objects: Objects, tmp_path: Path) -> None:
    folder = manifests.write(environment, tmp_path)
    for chart, members in objects.items():
        files = sorted((folder / chart).glob("*"))
        assert [yaml.safe_load(path.read_text()) for path in files] == members


@given(
    st.recursive(
        st.text(max_size=30) | st.integers() | st.booleans() | st.floats(allow_nan=False, allow_infinity=False),
        lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(min_size=1, max_size=10), inner, max_size=4),
        max_leaves=12,
    )
)
def test_yaml_reads_back_as_what_was_written(value: Any) -> None:
    assert yaml.safe_load(manifests.dump({"value": value})) == {"value": value}


@pytest.mark.parametrize("text", ["1e3", "0o17", "yes", "NO", "on", "~", "0.5", "-1", "12:30", ".5", "null", "y", ""])
def test_texts_that_look_like_something_else_are_quoted(text: str) -> None:
    assert manifests.dump({"value": text}) == f"value: '{text}'\n"


def test_objects_carry_no_null_and_unique_names(objects: Objects) -> None:
    def nulls(value: Any, path: str) -> list[str]:
        if value is None:
            return [path]
        children = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
        return [found for key, item in children for found in nulls(item, f"{path}.{key}")]

    members = [member for chart in objects.values() for member in chart]
    assert [path for member in members for path in nulls(member, member["kind"])] == []
    keys = [(member["kind"], member["metadata"].get("namespace"), member["metadata"]["name"]) for member in members]
    assert len(keys) == len(set(keys))


def test_a_namespace_comes_before_what_lies_in_it(objects: Objects) -> None:
    there: set[str] = set()
    for member in objects["platform"]:
        if member["kind"] == "Namespace":
            there.add(member["metadata"]["name"])
        elif "namespace" in member["metadata"]:
            assert member["metadata"]["namespace"] in there, member["metadata"]
    ray = [member for chart in ("raycluster", "rayservice") for member in objects[chart]]
    assert {member["metadata"]["namespace"] for member in ray} <= there


def test_objects_name_only_what_the_platform_makes(objects: Objects) -> None:
    made = {(m["kind"], m["metadata"].get("namespace"), m["metadata"]["name"]) for m in objects["platform"]}
    for chart in ("raycluster", "rayservice", "supervisor"):
        for member in objects[chart]:
            namespace = member["metadata"]["namespace"]
            for name, template in pod_templates({chart: [member]}):
                assert ("ServiceAccount", namespace, template["spec"]["serviceAccountName"]) in made, name
                claims = [v["persistentVolumeClaim"]["claimName"] for v in template["spec"]["volumes"] if "persistentVolumeClaim" in v]
                assert claims
                assert all(("PersistentVolumeClaim", namespace, claim) in made for claim in claims), name


def test_built_in_kinds_validate_against_the_version_in_use(environment: Environment, objects: Objects) -> None:
    version = environment.version_set.platform.kubernetes
    values = dict.fromkeys((*placeholders.PLACEHOLDERS, *placeholders.AT_APPLY), "fs-0123456789abcdef0")
    checked = 0
    for members in objects.values():
        for member in placeholders.fill(members, values):
            if member["kind"] not in RAY_KINDS:
                kubernetes_validate.validate(member, version, strict=True)
                checked += 1
    for name, template in pod_templates(objects):
        kubernetes_validate.validate(
            {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "x"} | template["metadata"], "spec": template["spec"]},
            version,
            strict=True,
        )
        checked += bool(name)
    assert checked > 10


def test_pods_pass_pod_security_baseline(objects: Objects) -> None:
    """https://kubernetes.io/docs/concepts/security/pod-security-standards/#baseline, the fields that these pods use."""
    allowed = {
        "AUDIT_WRITE",
        "CHOWN",
        "DAC_OVERRIDE",
        "FOWNER",
        "FSETID",
        "KILL",
        "MKNOD",
        "NET_BIND_SERVICE",
        "SETFCAP",
        "SETGID",
        "SETPCAP",
        "SETUID",
        "SYS_CHROOT",
    }
    templates = pod_templates(objects)
    assert len(templates) >= 5
    for name, template in templates:
        spec = template["spec"]
        assert not any(spec.get(field) for field in ("hostNetwork", "hostPID", "hostIPC")), name
        assert not any("hostPath" in volume for volume in spec["volumes"]), name
        assert spec["securityContext"]["seccompProfile"]["type"] == "RuntimeDefault", name
        for container in spec["containers"]:
            security = container["securityContext"]
            assert security["allowPrivilegeEscalation"] is False
            assert not security.get("privileged")
            assert security["capabilities"]["drop"] == ["ALL"]
            assert set(security["capabilities"].get("add", [])) <= allowed, name
            assert not any("hostPort" in port for port in container.get("ports", [])), name


def test_ray_objects_break_no_rule(objects: Objects) -> None:
    members = [member for chart in objects.values() for member in chart if member["kind"] in RAY_KINDS]
    assert {member["kind"] for member in members} >= {"RayCluster", "RayService"}
    assert [str(problem) for member in members for problem in kubernetes_rules.problems(member)] == []


def test_placeholders_stand_in_volumes_and_the_supervisor_only_and_fill_changes_nothing_else(objects: Objects) -> None:
    values = {name: f"filled-{name.lower()}-" for name in (*placeholders.PLACEHOLDERS, *placeholders.AT_APPLY)}
    assert set(placeholders.found(objects["supervisor"])) == set(placeholders.AT_APPLY)
    for chart, members in objects.items():
        for member in members:
            names = set(placeholders.found(member))
            wanted = set(placeholders.PLACEHOLDERS) if member["kind"] == "PersistentVolume" else set()
            assert chart == "supervisor" or names == wanted, (chart, member["kind"])
            filled = placeholders.fill(member, values)
            back = manifests.dump(filled)
            for name, value in values.items():
                back = back.replace(value, f"${{{name}}}")
            assert yaml.safe_load(back) == member


def test_command_prints_folder_digest_and_the_reason_of_the_upgrade(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(manifests, "ROOT", tmp_path)
    assert main(["--env", "reference"]) == 0
    folder, digest, upgrade, sharing = capsys.readouterr().out.splitlines()
    assert Path(folder) == tmp_path / "dist" / "reference"
    assert digest == f"sha256:{manifests.digest(Path(folder))}"
    assert "NewCluster" in upgrade
    assert "6 GPUs" in upgrade
    assert "`cluster down` before `serve up`" in sharing


def test_command_refuses_a_bad_environment_and_writes_nothing(tmp_path: Path) -> None:
    bad = tmp_path / "bad.yaml"
    bad.write_text((ROOT / "environments" / "reference.yaml").read_text().replace("count: 3", "count: -3").replace("region:", "regoin:"))
    run = subprocess.run([sys.executable, "-m", "k8s", "--env", str(bad)], cwd=ROOT, capture_output=True, text=True)
    assert run.returncode == 2
    assert run.stdout == ""
    assert "Traceback" not in run.stderr
    assert "regoin" in run.stderr
    assert "count" in run.stderr
    assert not (ROOT / "dist" / "bad").exists()


def test_account_reaches_names(capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(manifests, "ROOT", tmp_path)
    assert main(["--env", "reference", "--account", "444455556666"]) == 0
    capsys.readouterr()
    text = next((tmp_path / "dist" / "reference" / "raycluster").iterdir()).read_text()
    assert "444455556666.dkr.ecr.us-west-2.amazonaws.com/" in text
    assert load("reference").account not in text
