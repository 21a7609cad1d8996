"""The cluster side of preflight against a real Ray: its version, its GPUs, a task on a worker."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

from config.problems import Unreachable
from tests.training.preflight.test_rules import environment, specification
from tests.training.ray_endpoint import real_ray
from training import connection, jobs
from training.preflight import cluster


@pytest.mark.ray
def test_a_real_dashboard_and_a_real_worker(monkeypatch: pytest.MonkeyPatch) -> None:
    # The workers of this Ray have no identity, so that is what they say of the bucket.
    for variable in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_PROFILE", "AWS_ENDPOINT_URL"):
        monkeypatch.delenv(variable, raising=False)
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    monkeypatch.setenv("PATH", f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}")  # the pod's python has Ray
    with real_ray() as address, connection.connect(environment(), address=address) as way:
        seen = cluster.look(way)
        assert (seen.ray_version, seen.gpus) == ("2.57.0", 4)
        assert seen.skew_seconds is not None
        assert abs(seen.skew_seconds) < 5
        found = cluster.judge(seen, specification(), ray="2.57.0", wanted_gpus=6)
        assert [(finding.name, finding.problem.value) for finding in found] == [("cluster-has-all-gpus", "4")]
        # The standard library is there; SkyRL's examples and /shared are not on this machine.
        present = cluster.probe(way, specification(), module="json")
        assert {finding.name for finding in present} == {"worker-writes-shared", "worker-writes-bucket"}, present
        missing = cluster.probe(way, specification(), module="examples_of_nobody")
        assert {finding.name for finding in missing} == {"worker-imports-the-code", "worker-writes-shared", "worker-writes-bucket"}, missing
        monkeypatch.setattr(cluster, "PROBE_TIMEOUT_SECONDS", 0.0)  # given up while it runs
        with pytest.raises(Unreachable, match="busy"):
            cluster.probe(way, specification(), module="json")
        assert jobs.runs(way) == {}
        assert [job.submission_id for job in way.call(lambda client: client.list_jobs())] == []
