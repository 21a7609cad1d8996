"""The instance table against what was measured and published."""

from __future__ import annotations

import pytest

from config.instances import INSTANCES, Instance


@pytest.mark.parametrize(
    ("name", "threads", "millicores"),
    [
        ("ml.r5d.16xlarge", 2, 63770),
        ("ml.r5d.16xlarge", 1, 31850),
        ("ml.g7e.12xlarge", 2, 47810),
        ("ml.g7e.12xlarge", 1, 23870),
        ("ml.m5.xlarge", 1, 1930),
    ],
)
def test_allocatable_cpu_is_the_eks_formula(name: str, threads: int, millicores: int) -> None:
    # 1930m was read off a live HyperPod node (ml.m5.xlarge, one thread a core); the others follow the same formula.
    assert INSTANCES[name].allocatable_cpu_millicores(threads) == millicores


def test_allocatable_memory_stays_below_what_a_live_node_had() -> None:
    live_gib = 13269520 / 1024 / 1024
    estimate = INSTANCES["ml.m5.xlarge"].allocatable_memory_gib()
    assert 0.9 * live_gib < estimate < live_gib


@pytest.mark.parametrize("name", ["ml.r5d.16xlarge", "ml.g7e.12xlarge"])
def test_half_a_tebibyte_node_gives_at_most_460_gib(name: str) -> None:
    assert 400 < INSTANCES[name].pod_memory_gib() <= 460


@pytest.mark.parametrize("instance", INSTANCES.values(), ids=lambda instance: instance.name)
def test_every_row_is_whole(instance: Instance) -> None:
    assert instance.source
    assert (instance.gpus > 0) == bool(instance.gpu) == (instance.gpu_memory_gb > 0)
    assert 0 < instance.pod_memory_gib() < instance.memory_gib
    assert 0 < instance.pod_cpus() <= instance.vcpus


def test_g7e_12xlarge_has_two_gpus_not_six() -> None:
    assert INSTANCES["ml.g7e.12xlarge"].gpus == 2
