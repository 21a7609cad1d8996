"""The written list of what this project refuses and SkyRL's own check lets pass."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

# What only this project refuses, each with what would happen instead: `validate_cfg` lets it pass (compared over thousands of
# configurations in tests/training/test_differential.py, which fails for a name that is missing here or no longer needed).
OWN_RULES: Final[Mapping[str, str]] = {
    "parse": "a value of the wrong type is taken and fails on the nodes",
    "range:": "a count below 1, a share above 1, a negative rate: it fails, or trains nonsense, later",
    "word:trainer.strategy": "fsdp2 is an old name that still works, with a warning",
    "word:trainer.logger": "the tracker asserts it after the models are loaded",
    "word:trainer.resume_mode": "an Enum error at the start of the trainer",
    "word:trainer.algorithm.dynamic_sampling.type": "an unknown word means no dynamic sampling",
    "word:trainer.algorithm.kl_ctrl.type": "a ValueError at the start of the trainer",
    "word:trainer.algorithm.kl_estimator_type": "a ValueError in the first loss",
    "word:trainer.algorithm.off_policy_correction.tis_ratio_type": "an empty word passes as none",
    "mini-batch-spreads-over-gpus": "the division is floored, and the dispatch asserts on the GPUs",
    "batch-spreads-over-gpus": "as above",
    "replicas-fit": "the division is floored, and GPUs stay idle or the mesh fails",
    "ref-replicas-fit": "as above",
    "critic-replicas-fit": "as above",
    "critic-mini-batch-spreads-over-gpus": "as for the policy",
    "group-has-two-samples": "every advantage is 0",
    "context-holds-conversation": "the engine cuts long conversations or refuses them",
    "cluster-has-the-gpus": "the placement group waits and times out",
    "evaluation-stays-greedy": "evaluation samples at temperature 1",
    "lora-syncs-whole": "the adapter cannot be sent to the engines",
    "lora-leaves-vision-alone": "vLLM ignores what the vision tower learned",
    "cpu-loras-hold-active": "vLLM refuses to start",
    "lora-checkpoint-is-a-folder": "the first checkpoint crashes",
    "eval-dump-is-a-folder": "the first evaluation crashes",
    "resume-path-given": "the trainer finds no checkpoint there",
    "adapter-reaches-every-node": "engines on other nodes find no adapter",
    "shared-path-train_data": "the reader runs on another node",
    "shared-path-val_data": "as above",
    "shared-path-ckpt_path": "each node keeps its own part, and a replaced node loses it",
    "shared-path-export_path": "exports lie on the node of rank 0",
    "vlm-batched": "the generator raises at its start",
    "vlm-step_wise_trajectories": "the generator raises at its start",
    "vlm-use_conversation_multi_turn": "the generator raises at its start",
    "vlm-remove_microbatch_padding": "the forward pass asserts, after all models are loaded",
}
