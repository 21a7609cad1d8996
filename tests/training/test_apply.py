"""Several files are applied together or not at all."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest

from config.load import load
from config.problems import Refused
from tests.training.fakes import FakeKubectl
from training import kubeconfig
from training.kubernetes import Kubectl, Rejected

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
