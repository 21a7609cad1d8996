"""What a destroy would do, said before."""

from __future__ import annotations

from config.names import Stack
from operations.teardown import plan
from tests.operations.conftest import ACCOUNT, Variant

ALL = {which.value: "CREATE_COMPLETE" for which in Stack}


def test_with_destroy_everything_goes(variant: Variant) -> None:
    found = plan(variant({"storage.removal": "destroy"}), stacks=ALL, running=[])
    assert found.stays == []
    assert found.stops_at == []
    assert found.goes[-1] == (
        f"Data: the file system with all of /shared, the bucket hyperpod-rl-mine-{ACCOUNT}-us-west-2 and the images in "
        "ray/skyrl-visgym-mine, for ever"
    )
    assert len(found.goes) == len(ALL)


def test_with_backup_the_data_stays_and_the_file_system_is_backed_up(variant: Variant) -> None:
    found = plan(variant({"storage.removal": "backup", "storage.encryption": "kms"}), stacks=ALL, running=[])
    assert "Data: the file system, after a last backup named hyperpod-rl-mine-final" in found.goes
    assert found.stays == [
        "the last backup of the file system",
        f"the bucket hyperpod-rl-mine-{ACCOUNT}-us-west-2 and the images in ray/skyrl-visgym-mine, and their key",
    ]
    assert found.stops_at == []


def test_with_retain_it_stops_at_the_network_and_the_data(variant: Variant) -> None:
    found = plan(variant(), stacks=ALL, running=[])
    assert found.stops_at == [
        "Data, which is protected by storage.removal: retain", "Network, which is protected by storage.removal: retain"
    ]  # fmt: skip
    assert not [text for text in found.goes if text.startswith(("Data", "Network"))]
    assert "the file system with all of /shared" in found.stays


def test_termination_protection_stops_it_at_once(variant: Variant) -> None:
    assert len(plan(variant({"termination_protection": True}), stacks=ALL, running=[]).stops_at) == len(ALL)


def test_only_what_is_there_is_named_and_running_runs_refuse(variant: Variant) -> None:
    found = plan(variant(), stacks={"Network": "CREATE_COMPLETE"}, running=["maze-grpo-1"])
    assert found.goes == []
    assert found.stays == []
    assert [line for line in found.lines if line.startswith("refused")] == [
        "refused  run maze-grpo-1 has not ended: hyperpod-rl stop maze-grpo-1, or let its work be lost with "
        "kubectl annotate raycluster skyrl-visgym -n training hyperpod-rl/may-lose-jobs=true"
    ]


def test_a_stack_that_is_still_being_changed_refuses(variant: Variant) -> None:
    """A destroy beside an update leaves what the update makes last."""
    found = plan(
        variant({"storage.removal": "destroy"}), stacks={**ALL, "HyperPod": "UPDATE_IN_PROGRESS", "Data": "REVIEW_IN_PROGRESS"}, running=[]
    )
    assert found.refused == ["stack hyperpod-rl-mine-HyperPod is UPDATE_IN_PROGRESS: wait for its end (hyperpod-rl --env mine status)"]
    assert found.document()["changing"] == found.refused
