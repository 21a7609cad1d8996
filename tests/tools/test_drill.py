"""The drill itself, over one resource of each type and every role of `reference`; `make drill` takes all of them."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from config import load
from local import lifecycle, state
from tools.deployment import Assembly, synthesize
from tools.drill import Report, Row, drill

pytestmark = pytest.mark.cloud


@pytest.fixture(scope="module")
def assembly(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Assembly]:
    patch = pytest.MonkeyPatch()
    patch.setenv(state.FOLDER, str(tmp_path_factory.mktemp("drill")))
    try:
        lifecycle.up(node_delay=0.05)
        yield synthesize(load.load("reference"), tmp_path_factory.mktemp("out"))
    finally:
        lifecycle.down(purge=True)
        patch.undo()


def test_whatever_fails_leaves_nothing_but_what_the_removal_mode_keeps(assembly: Assembly) -> None:
    wanted = assembly.one_of_each()
    kinds = assembly.resources()
    assert {kinds[name] for name in wanted} == set(kinds.values())
    assert {name for name, kind in kinds.items() if kind == "AWS::IAM::Role"} <= set(wanted)
    *rows, report = drill(load.load("reference"), assembly, wanted)
    assert isinstance(report, Report)
    assert [row for row in rows if isinstance(row, Row) and not row.good] == []
    assert [row.resource for row in report.rows] == list(wanted)
    assert report.left == []
    kept = {line.split(" ")[0] for line in report.kept}
    assert {"Data/FileSystem", "Data/Artifacts82DD59A1", "Data/Images", "Network/Vpc", "Network/HyperPodSubnet"} <= kept


def test_all_resources_of_the_templates_are_rows_of_the_whole_drill(assembly: Assembly) -> None:
    found = assembly.resources()
    assert len(found) == sum(len(template["Resources"]) for template in assembly.templates.values())
    assert len(found) > 150


def test_a_row_is_good_only_when_its_stack_rolled_back_and_left_nothing() -> None:
    good = Row("Network/Vpc", "AWS::EC2::VPC", "ROLLBACK_COMPLETE", 0.1, inside=("Kubernetes object: x",))
    assert good.good
    assert not Row("Network/Vpc", "AWS::EC2::VPC", "ROLLBACK_FAILED", 0.1).good
    assert not Row("Network/Vpc", "AWS::EC2::VPC", "ROLLBACK_COMPLETE", 0.1, left=("VPC: vpc-1",)).good
    assert not Report("x", rows=[good], left=["VPC: vpc-1"]).good


@pytest.mark.usefixtures("assembly")
def test_what_is_left_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    """A rollback that forgets a log group."""
    from tools import drill as module

    before = lifecycle.inventory()
    planted = {**before, "Log group": [*before.get("Log group", []), "/aws/lambda/forgotten"]}
    monkeypatch.setattr(lifecycle, "inventory", lambda: planted)
    assert module._more(before, module._inventory()) == ["Log group: /aws/lambda/forgotten"]
