from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from config import names
from config.load import load
from config.problems import Refused, Unreachable
from serving import export, tensors
from tests.serving.exports import RUN, adapter, config, make_record, write_export
from training.record import Model

ENV = load("local")


def refused(step: int = 10, *, env: Any = ENV, record: Any = None) -> str:
    with pytest.raises(Refused) as found:
        export.checked(env, record or make_record(), step)
    return str(found.value)


def test_a_sound_export_is_told_with_its_digests(shared: Path) -> None:
    folder = write_export(shared, 10)
    found = export.checked(ENV, make_record(), 10)
    assert (found.folder, found.step, found.rank, found.alpha, found.stand_in) == (folder, 10, 8, 8.0, True)
    assert [file.name for file in found.files] == [names.ADAPTER_WEIGHTS, names.ADAPTER_CONFIG]
    assert found.files[0].size_bytes == (folder / names.ADAPTER_WEIGHTS).stat().st_size
    assert export.checked(ENV, make_record(), 10) == found
    write_export(shared, 20)
    assert export.checked(ENV, make_record(), 20).digest != found.digest
    assert export.steps(shared / "runs" / RUN) == [10, 20]


def nan(kind: str = "nan") -> dict[str, Any]:
    found = adapter()
    found["base_model.model.head.lora_B.weight"][1, 2] = float(kind)
    return found


def renamed(old: str, new: str) -> dict[str, Any]:
    return {name.replace(old, new): value for name, value in adapter().items()}


def zero(side: str) -> dict[str, Any]:
    return {name: value * 0 if side in name else value for name, value in adapter().items()}


@pytest.mark.parametrize(
    ("weights", "said"),
    [
        (nan(), r"base_model.model.head.lora_B.weight: these weights are not finite numbers"),
        (nan("inf"), "not finite numbers"),
        (nan("-inf"), "not finite numbers"),
        (renamed("encoder", "model.visual.blocks.0.attn.qkv"), r"vLLM ignores adapters of the vision tower.*exclude_modules"),
        (zero("lora_"), "so the adapter changes nothing"),
        (zero("lora_B"), "so the adapter changes nothing"),
        (zero("lora_A"), "so the adapter changes nothing"),
        (adapter() | {"base_model.model.lm_head.weight": np.ones((2, 2), np.float32)}, "no LoRA weights that vLLM knows"),
        (renamed("head.lora_A", "tail.lora_A"), "one half of an adapter only"),
        (adapter(rank=4), r"encoder \(\(4, 6\), \(4, 4\)\) and 1 more: their shapes do not have the rank 8"),
        ({name: value.astype(np.int64) for name, value in adapter().items()}, "of type I64; adapters are served in BF16, F16, F32, F64"),
        ({}, "changes nothing"),
    ],
)
def test_weights_that_cannot_be_served_are_refused(shared: Path, weights: Any, said: str) -> None:
    write_export(shared, 10, weights=weights)
    import re

    assert re.search(said, refused()), refused()


@pytest.mark.parametrize("lost", [1, 100, 700])
def test_truncated_weights_are_refused(shared: Path, lost: int) -> None:
    path = write_export(shared, 10) / names.ADAPTER_WEIGHTS
    path.write_bytes(path.read_bytes()[:-lost])
    assert "it does not open: truncated, or no safetensors file" in refused()


def test_a_file_that_is_no_safetensors_is_refused(shared: Path) -> None:
    write_export(shared, 10, weights=b"PK\x03\x04 pickled")
    assert "no safetensors file" in refused()


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"r": 64}, "the endpoint holds adapters of rank 1 to 8"),
        ({"r": 64}, "the run's record says trainer.policy.model.lora.rank=8"),
        ({"rank_pattern": {"head": 64}}, "r = 64: the endpoint holds adapters of rank 1 to 8"),
        ({"lora_alpha": 16}, "the run's record says trainer.policy.model.lora.alpha=8"),
        ({"base_model_name_or_path": "/shared/models/other"}, "the endpoint serves /shared/models/maze-standin"),
        ({"peft_type": "LOHA"}, "LoRA adapters only"),
        ({"use_dora": True}, "vLLM does not serve this kind of adapter"),
        ({"bias": "all"}, "vLLM does not serve this kind of adapter"),
        ({"modules_to_save": ["lm_head"]}, "vLLM does not serve this kind of adapter"),
        ({"r": "absent"}, "adapter_config.json r: it cannot be read: Field required"),
        ({"r": True}, "adapter_config.json r: it cannot be read"),
        ({"rank_pattern": [8]}, "adapter_config.json rank_pattern: it cannot be read"),
        ({"lora_alpha": float("nan")}, "cannot be read"),
        ({"lora_alpha": 0}, "cannot be read"),
        ({"r": "eight"}, "cannot be read"),
    ],
)
def test_settings_that_the_record_or_the_endpoint_contradict_are_refused(shared: Path, changes: dict[str, Any], said: str) -> None:
    write_export(shared, 10, settings=config(**changes))
    assert said in refused()


def test_another_base_revision_than_the_served_one_is_refused(shared: Path) -> None:
    env = load("reference")
    write_export(
        shared, 10, settings=config(base_model_name_or_path=env.training.base_model, r=32, lora_alpha=32), weights=adapter(rank=32)
    )
    trained = make_record().model.model_copy(
        update={"path": env.training.base_model, "repository": env.training.base_model_repository,
                "subfolder": env.training.base_model_subfolder, "revision": "0" * 40}
    )  # fmt: skip
    record = make_record().model_copy(update={"overrides": {}, "model": trained})
    said = refused(env=env, record=record)
    assert f"it was trained on VisGym/visgym_model/mixed_qwen3vl at {'0' * 40}, and the endpoint serves" in said
    same = record.model_copy(update={"model": trained.model_copy(update={"revision": env.training.base_model_revision})})
    assert export.checked(env, same, 10).rank == 32


def test_the_commit_on_the_shared_file_system_must_be_the_revision_that_is_named(shared: Path) -> None:
    env = ENV.model_copy(update={"training": ENV.training.model_copy(update={"base_model_revision": "a" * 40})})
    record = make_record().model_copy(update={"model": make_record().model.model_copy(update={"revision": "a" * 40})})
    write_export(shared, 10)
    marker = shared / "models" / "maze-standin" / ".complete"
    marker.parent.mkdir(parents=True)
    marker.write_text(json.dumps({"commit": "b" * 40}))
    assert f"holds commit {'b' * 40}" in refused(env=env, record=record)
    marker.write_text(json.dumps({"commit": "a" * 40}))
    assert export.checked(env, record, 10).base_commit == "a" * 40
    marker.write_text("by hand")
    assert export.checked(env, record, 10).base_commit is None


def test_a_whole_model_is_no_adapter(shared: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(export, "_LARGEST", 100)
    write_export(shared, 10)
    assert "export the adapter alone, not the whole model" in refused()


def test_the_size_of_a_known_models_adapter_follows_from_its_rank(shared: Path) -> None:
    rank32 = export.AdapterConfig(r=32, lora_alpha=32.0)
    problems = list(export._size(load("reference"), 3 << 30, rank32, "export"))
    assert "an adapter of Qwen3-VL-8B at rank 32 has at most" in str(problems[0])
    assert list(export._size(load("reference"), 349 << 20, rank32, "export")) == []


def test_an_export_that_is_still_being_written_is_refused(shared: Path) -> None:
    step = shared / "runs" / RUN / "exports" / "global_step_10"
    (step / ".tmp-hf-export-policy").mkdir(parents=True)
    assert "it is still being written" in refused()


def test_an_export_that_changes_while_it_is_read_is_refused(shared: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = write_export(shared, 10)

    def look(path: Path) -> Any:
        found = tensors.look(path)
        (folder / names.ADAPTER_CONFIG).write_text(json.dumps(config(inference_mode=True)))
        return found

    monkeypatch.setattr(export, "look", look)
    assert "it changed while it was read: it is still being written" in refused()


def test_half_an_export_and_none_at_all_are_told_apart(shared: Path) -> None:
    folder = write_export(shared, 10)
    (folder / names.ADAPTER_WEIGHTS).unlink()
    assert f"it is not whole: {names.ADAPTER_WEIGHTS} is missing" in refused()
    write_export(shared, 20)
    assert "has no export of this step; its exports are of step 10, 20" in refused(30)


def test_without_the_shared_file_system_nothing_is_said_about_exports(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("HYPERPOD_RL_SHARED", raising=False)
    with pytest.raises(Unreachable, match="not visible here"):
        export.checked(ENV, make_record(), 10)


def test_everything_that_is_wrong_is_said_at_once(shared: Path) -> None:
    write_export(shared, 10, weights=nan(), settings=config(lora_alpha=99, peft_type="X", base_model_name_or_path="y"))
    assert len(refused().splitlines()) == 4


BF16 = [(1.0, 0x3F80), (0.0, 0x0000), (-0.0, 0x8000), (np.nan, 0x7FC0), (np.inf, 0x7F80), (-np.inf, 0xFF80), (1e-40, 0x0001)]


@pytest.mark.parametrize(("value", "bits"), BF16)
def test_bfloat16_is_looked_at_without_torch(tmp_path: Path, value: float, bits: int) -> None:
    """safetensors' format by hand: NumPy knows no bfloat16."""
    data = np.array([bits] * 4, "<u2").tobytes()
    header = json.dumps({"w": {"dtype": "BF16", "shape": [2, 2], "data_offsets": [0, 8]}}).encode()
    (tmp_path / "f").write_bytes(len(header).to_bytes(8, "little") + header + data)
    found = tensors.look(tmp_path / "f")["w"]
    assert (found.dimensions, found.dtype) == ((2, 2), "BF16")
    assert found.finite == np.isfinite(value)
    assert found.nonzero == (value != 0)


@settings(max_examples=40, deadline=None)
@given(st.sampled_from(["float16", "float32", "float64"]), st.lists(st.floats(width=16), min_size=1, max_size=40))
def test_bits_say_what_numpy_says(tmp_path_factory: pytest.TempPathFactory, kind: str, values: list[float]) -> None:
    from safetensors.numpy import save_file

    path = tmp_path_factory.mktemp("tensors") / "f"
    array = np.array(values, kind)
    save_file({"w": array}, path)
    found = tensors.look(path)["w"]
    assert found.finite == bool(np.isfinite(array).all())
    assert found.nonzero == bool((array != 0).any())


@settings(max_examples=150, deadline=None)
@given(st.integers(0, 10_000), st.integers(0, 255), st.integers(0, 40))
def test_damaged_weights_are_read_or_refused_and_nothing_else(
    tmp_path_factory: pytest.TempPathFactory, place: int, byte: int, lost: int
) -> None:
    """A byte somewhere is another one, and some at the end are missing."""
    from safetensors.numpy import save

    content = bytearray(save(adapter()))
    content[place % 400] = byte  # most of the header, its length included
    path = tmp_path_factory.mktemp("damaged") / "f"
    path.write_bytes(bytes(content[: len(content) - lost]))
    try:
        found = tensors.look(path)
    except tensors.Unreadable:
        return
    assert lost == 0
    assert all(isinstance(shape, tensors.Shape) for shape in found.values())


def test_a_stand_ins_export_is_known_as_one(shared: Path) -> None:
    assert not export.is_stand_in(write_export(shared, 10, stand_in=False))
    assert export.is_stand_in(write_export(shared, 20))
    assert not export.is_stand_in(shared)


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"rank_pattern": {"head": 4}}, "rank_pattern = {'head': 4}: vLLM scales every module by lora_alpha / r"),
        ({"alpha_pattern": {"encoder": 16}}, "alpha_pattern = {'encoder': 16.0}: vLLM scales every module by lora_alpha / r"),
    ],
)
def test_a_module_with_a_scale_of_its_own_would_be_served_with_another(shared: Path, changes: dict[str, Any], said: str) -> None:
    """vllm/lora/peft_helper.py reads neither pattern: one scale, lora_alpha / r, for every module."""
    write_export(shared, 10, settings=config(**changes))
    assert said in refused()
    write_export(shared, 20, settings=config(rank_pattern={"head": 8}, alpha_pattern={}))
    assert export.checked(ENV, make_record(), 20).rank == 8


def test_a_run_whose_base_model_is_not_known_is_not_taken_for_one_of_the_served(shared: Path) -> None:
    write_export(shared, 10)
    said = refused(record=make_record().model_copy(update={"model": Model()}))
    assert "the run's record does not say what it was trained on, and the endpoint serves a model without a repository at main" in said


def test_deeply_nested_files_are_no_reason_to_fall_over(shared: Path) -> None:
    folder = write_export(shared, 10)
    (folder / "config.json").write_text('{"a":' * 100_000)
    assert not export.checked(ENV, make_record(), 10).stand_in
