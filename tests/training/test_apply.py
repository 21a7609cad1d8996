"""Several files are applied together or not at all."""

from __future__ import annotations

import subprocess
from collections.abc import Sequence
from pathlib import Path

import pytest

from config.load import load
from config.problems import Refused
from tests.training.fakes import FakeKubectl
from training import kubeconfig
from training.kubernetes import Kubectl, Rejected, _one_file_name
from training.kubernetes import kubectl as program

CONFLICT = 'Apply failed with 1 conflict: conflict with "somebody" using v1: .spec.ports'


@pytest.fixture
def kubectl(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[Kubectl, FakeKubectl]:
    (tmp_path / "config").touch()
    monkeypatch.setattr(kubeconfig, "ensure", lambda _: tmp_path / "config")
    monkeypatch.setattr(kubeconfig, "credential", lambda _: {})
    execute = FakeKubectl(lambda words: (1, CONFLICT) if refused(words) else "")
    return Kubectl(load("reference"), execute), execute


def refused(words: Sequence[str]) -> bool:
    return "two" in Path(words[-1]).name


@pytest.mark.parametrize(("files", "name", "calls"), [(1, "one", 1), (2, "both", 2), (2, "two", 1)])
def test_a_folder_is_asked_about_before_it_is_applied(
    kubectl: tuple[Kubectl, FakeKubectl], tmp_path: Path, files: int, name: str, calls: int
) -> None:
    folder = tmp_path / name
    folder.mkdir()
    for number in range(files):
        (folder / f"{number:02d}.yaml").touch()
    if name == "two":
        with pytest.raises(Refused, match="`somebody` owns"):
            kubectl[0].apply(folder)
    else:
        kubectl[0].apply(folder)
    dry = ["--dry-run=server" in words for words in kubectl[1].asked]
    assert dry == ([False] if files == 1 else [True, False])[:calls]


def test_what_else_is_wrong_is_said_as_it_is(kubectl: tuple[Kubectl, FakeKubectl], tmp_path: Path) -> None:
    kubectl[1].answer = lambda _: (1, "Error from server (Forbidden): no")
    with pytest.raises(Rejected, match="Forbidden"):
        kubectl[0].apply(tmp_path)


@pytest.mark.parametrize("name", ["a,b", 'a "b", c', "plain"])
def test_a_folder_is_one_word_for_kubectl_whatever_its_name(name: str, tmp_path: Path) -> None:
    """The real kubectl reads several files out of one word; of a folder that is not there it says so before it asks any server."""
    command = (program(), "apply", "--dry-run=client", "-f", _one_file_name(tmp_path / name))
    done = subprocess.run(command, env={"KUBECONFIG": "/dev/null", "HOME": str(tmp_path)}, capture_output=True, text=True, check=False)
    assert done.stderr == f'error: the path "{tmp_path / name}" does not exist\n'.replace('a "b", c', 'a \\"b\\", c')
