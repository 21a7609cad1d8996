"""What the Observability stack brings beside the add-on: Grafana's content, alarms, and who is told."""

from __future__ import annotations

import json
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from config.environment import Environment
from config.problems import Refused
from stacks.dashboards.documents import files
from stacks.observability import Observability
from tests.stacks.assembly import Assembly, synthesize

Variant = Callable[..., Environment]
EMAIL = {"observability.alarm_email": "platform@example.com", "observability.monthly_budget_usd": 30000}


@pytest.fixture
def observability(tmp_path: Path, variant: Variant) -> Callable[..., Assembly]:
    """The stack alone, in an environment with some values changed."""

    def of(**changes: object) -> Assembly:
        settings = variant("reference", {name.replace("__", "."): value for name, value in changes.items()})
        folder = tmp_path / f"assembly-{len(list(tmp_path.iterdir()))}"
        return synthesize(settings, folder, only=lambda app: Observability(app, settings))

    return of


def test_grafana_gets_its_content_from_an_asset_with_exactly_the_built_files(observability: Callable[..., Assembly]) -> None:
    made = observability()
    content = made.one("Custom::GrafanaContent")
    key = content["Key"]
    assert key.endswith(".zip")
    folder = made.folder / f"asset.{key.removesuffix('.zip')}"
    assert {path.name: path.read_bytes() for path in folder.iterdir()} == {name: text.encode() for name, text in files().items()}
    assert not zipfile.is_zipfile(folder)
    longest = max(len(json.dumps(value)) for value in content.values())
    assert longest < 2000, "texts go as an asset, not as properties"
    function = next(body["Properties"] for body in made.resources("AWS::Lambda::Function").values())
    assert function["Handler"] == "handlers.grafana.handler"
    assert "VpcConfig" not in function, "Grafana is reached over its public address"


def test_its_role_may_fill_this_workspace_and_read_this_asset(observability: Callable[..., Assembly]) -> None:
    made = observability()
    (policy,) = [
        statement
        for body in made.resources("AWS::IAM::Role").values()
        for document in body["Properties"].get("Policies", ())
        for statement in document["PolicyDocument"]["Statement"]
        if any(str(action).startswith("grafana:") for action in statement["Action"])
    ]
    assert "*" not in json.dumps(policy)
    assert not [action for action in policy["Action"] if action in ("grafana:DeleteWorkspace", "grafana:UpdateWorkspace")]


def test_another_dashboard_makes_the_resource_do_its_work_again(
    observability: Callable[..., Assembly], monkeypatch: pytest.MonkeyPatch
) -> None:
    before = observability().one("Custom::GrafanaContent")["Key"]
    changed = {name: text.replace('"Training"', '"Training now"') for name, text in files().items()}
    monkeypatch.setattr("stacks.dashboards.documents.files", lambda: changed)
    assert observability().one("Custom::GrafanaContent")["Key"] != before


def test_without_grafana_there_is_no_content(observability: Callable[..., Assembly]) -> None:
    made = observability(observability__grafana="none")
    assert made.resources("Custom::GrafanaContent") == {}
    assert made.resources("AWS::CloudWatch::Alarm")


def test_whoever_is_named_is_told_of_alarms_and_of_the_budget(observability: Callable[..., Assembly]) -> None:
    quiet = observability(observability__monthly_budget_usd=30000)
    assert quiet.resources("AWS::SNS::Topic") == {}
    assert "NotificationsWithSubscribers" not in quiet.one("AWS::Budgets::Budget")
    made = observability(**{name.replace(".", "__"): value for name, value in EMAIL.items()})
    subscription = made.one("AWS::SNS::Subscription")
    assert (subscription["Protocol"], subscription["Endpoint"]) == ("email", "platform@example.com")
    alarm: dict[str, Any] = made.one("AWS::CloudWatch::Alarm")
    assert alarm["AlarmActions"] == [{"Ref": "Alarms"}]
    told = made.one("AWS::Budgets::Budget")["NotificationsWithSubscribers"]
    assert [(each["Notification"]["NotificationType"], each["Notification"]["Threshold"]) for each in told] == [
        ("ACTUAL", 80), ("FORECASTED", 100),
    ]  # fmt: skip


def test_an_address_that_is_none_is_refused(variant: Variant) -> None:
    with pytest.raises(Refused, match="alarm_email"):
        variant("reference", {"observability.alarm_email": "somebody"})
