"""Quotas come from the environment where it gives them."""

from __future__ import annotations

import pytest

from local.cloud.services import quotas


def test_a_quota_is_lowered_for_one_type_only(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(quotas.ENVIRONMENT, '{"ml.g7e.12xlarge": 2}')
    assert quotas.cluster_usage("ml.g7e.12xlarge") == 2
    assert quotas.cluster_usage("ml.r5d.16xlarge") == quotas.DEFAULT
