"""The training loop: SkyRL's order of things, on the stand-in's policy.

Every random draw is derived from (seed, step, prompt, sample), rollouts are gathered in a fixed order, and a checkpoint is
written by one rename. So a run that was killed at any moment and resubmitted with `resume_mode=latest` ends with the very
bytes of a run that was not. SkyRL does not restore that much: it brings back model, optimizer, scheduler, per-rank random
state and the loader's position, but not the driver's and the environments' random state, and training mazes are fresh draws.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from local.trainer import checkpoint, grpo, shared
from local.trainer.checkpoint import OtherRun, Progress, State
from local.trainer.console import Log, Metrics, say, say_step
from local.trainer.optimizer import Adam
from local.trainer.policy import initial_adapter, merged
from local.trainer.pretrain import base_model
from local.trainer.rollout import Executor, Rollout, Task, split, utterance
from local.trainer.settings import Settings
from training.maze import HELD_OUT, maze, oracle_bound, training_maze
from training.skyrl import render

Floats = NDArray[Any]

_ROLLOUT: Final = 1  # first word of the random draws: what they are for
_ADAPTER: Final = 2
_EVALUATION: Final = 3
_SHUFFLE: Final = 4


@dataclass
class Run:
    """One attempt. `progress` is called before everything that is written; tests raise in it."""

    settings: Settings
    execute: Executor
    log: Log = say
    log_step: Callable[[int, Metrics], None] = say_step
    progress: Progress = lambda name: None
    metrics: dict[str, float | int] = field(default_factory=dict)
    _redone_above: int | None = None  # the step that the attempt went on from, until its first save

    def train(self) -> State:
        """Train to the last step, from the newest checkpoint if the settings say so.

        Raises:
            OtherRun: the checkpoint to resume from belongs to another configuration, or `trainer.policy.model.path`
                holds something else than a base model of the stand-in.
        """
        s = self.settings
        self.log(f"{shared.STAND_IN}; overrides: {' '.join(render(s.values))}")
        try:
            base, trained = base_model(s.base_path, seed=s.base_seed)
        except ValueError as error:
            raise OtherRun(str(error)) from error
        self.log(f"Base model {s.base_path}" + (" (supervised start, trained just now)" if trained else ""))
        for folder in (s.checkpoints, s.exports):
            folder.mkdir(parents=True, exist_ok=True)
            shared.remove_left_overs(folder)
        self._bound()
        state = self.start(base)
        self._redone_above = state.step
        if redone := checkpoint.above(s.checkpoints, state.step):
            names = ", ".join(f"global_step_{step}" for step in redone)
            self.log(f"Training goes on from step {state.step}; the first save replaces or sets aside (superseded-...) {names}")
        if s.eval_interval > 0 and s.eval_before_train:
            with self._timed("eval"):
                self.evaluate(base, state)
            self._flush(state.step)
        while state.step < s.total_steps:
            self._step(base, state)
        if s.ckpt_interval > 0:  # SkyRL saves once more at the end, also when nothing was left to train
            self._save(base, state)
        if s.export_interval > 0:
            self._export(state)
        self.log("Training done!")
        return state

    def start(self, base: dict[str, Floats]) -> State:
        """The state that training goes on from: of a checkpoint, or a fresh adapter, which changes nothing of the base."""
        s = self.settings
        rng = np.random.default_rng(np.random.SeedSequence([_ADAPTER, s.seed]))
        fresh = State(0, initial_adapter(s.lora, rng), self._optimizer())
        if s.resume_mode == "none":
            return fresh

        def load(folder: Any) -> State:
            return checkpoint.load(folder, base=base, adapter=fresh.adapter, optimizer=self._optimizer(), world=s.gpus)

        if s.resume_mode == "from_path":
            assert s.resume_path is not None
            try:
                found: State | None = load(s.resume_path)
            except checkpoint.Torn as torn:
                raise OtherRun(f"{s.resume_path} is torn: {torn}") from torn
        else:
            found = checkpoint.newest(s.checkpoints, self.log, load)
        if found is None:
            return fresh
        self.log(f"Resumed from global_step_{found.step}")
        return found

    def _optimizer(self) -> Adam:
        s = self.settings
        return Adam(lr=s.lr, betas=s.betas, weight_decay=s.weight_decay, max_grad_norm=s.max_grad_norm)

    def _step(self, base: dict[str, Floats], state: State) -> None:
        s, step = self.settings, state.step + 1
        with self._timed("step"):
            tasks = [Task(training_maze(_ROLLOUT, s.seed, step, prompt), (_ROLLOUT, s.seed, step, prompt)) for prompt in range(s.batch)]
            with self._timed("generate"):
                groups = self._roll(base, state, tasks, s.rollouts)
            rewards = np.array([[rollout.reward for rollout in group] for group in groups])
            if s.shuffle_rewards:
                rng = np.random.default_rng(np.random.SeedSequence([_SHUFFLE, s.seed, step]))
                rewards = rng.permuted(rewards, axis=1)  # within each prompt: the same groups teach, but nothing true
            with self._timed("compute_advantages_and_returns"):
                scores = grpo.advantages(rewards, by_std=s.loss.grpo_norm_by_std)
            started = time.perf_counter()
            with self._timed("policy_train"):
                self._update(base, state, tasks, groups, scores)
            turns = sum(len(rollout.words) for group in groups for rollout in group)
            self.metrics["trainer/tokens_per_second_per_gpu"] = turns / (time.perf_counter() - started) / s.gpus
            state.step = step
            self._reward_metrics(groups, rewards)
            epoch_end = step % s.steps_per_epoch == 0
            if s.ckpt_interval > 0 and (epoch_end or step % s.ckpt_interval == 0):
                self._save(base, state)
            if s.export_interval > 0 and (epoch_end or step % s.export_interval == 0):
                self._export(state)
            with self._timed("sync_weights"):
                self._sync(state)
        if s.eval_interval > 0 and (step % s.eval_interval == 0 or step == s.total_steps):
            with self._timed("eval"):
                self.evaluate(base, state)
        self.metrics |= {"trainer/epoch": (step - 1) // s.steps_per_epoch, "trainer/global_step": step}
        self._flush(step)

    def _update(self, base: dict[str, Floats], state: State, tasks: Sequence[Task], groups: list[list[Rollout]], scores: Floats) -> None:
        s = self.settings
        updates, norms = [], []
        for _ in range(s.passes):
            for low in range(0, s.batch, s.mini_batch):
                part = slice(low, low + s.mini_batch)
                found = grpo.update(base, state.adapter, s.lora, tasks=tasks[part], groups=groups[part], scores=scores[part], loss=s.loss)
                changed, norm = state.optimizer.update(state.adapter, found.gradient)
                state.adapter.update(changed)
                updates.append(found)
                norms.append(norm)
        self.metrics |= {
            "policy/final_loss": float(np.mean([found.loss for found in updates])),
            "policy/grad_norm": float(np.mean(norms)),
            "policy/policy_entropy": float(np.mean([found.entropy for found in updates])),
            "policy/policy_kl": float(np.mean([found.kl for found in updates])),
            "policy/policy_lr": s.lr,
            "policy/ppo_clip_ratio": float(np.mean([found.clip_ratio for found in updates])),
        }

    def evaluate(self, base: dict[str, Floats], state: State) -> float:
        """Greedy rollouts of the 64 held-out mazes; returns the share solved."""
        s = self.settings
        tasks = [Task(maze(seed), (_EVALUATION, s.seed, seed)) for seed in HELD_OUT]
        rollouts = [group[0] for group in self._roll(base, state, tasks, s.evaluation)]
        scores = [rollout.reward for rollout in rollouts]
        common: dict[str, float | int] = {}
        for source in ("all", "unknown"):
            common |= {
                f"eval/{source}/avg_score": float(np.mean(scores)),
                f"eval/{source}/mean_positive_reward": float(np.mean([max(score, 0.0) for score in scores])),
                f"eval/{source}/pass_at_1": float(np.mean([score > 0 for score in scores])),
            }
        common |= {f"eval/all/{name}": value for name, value in _environment_metrics(rollouts).items()}
        self.metrics |= common
        if s.dump_evaluations:
            self._dump(state.step, rollouts, common)
        return float(np.mean([rollout.solved for rollout in rollouts]))

    def _roll(self, base: dict[str, Floats], state: State, tasks: Sequence[Task], plan: Any) -> list[list[Rollout]]:
        weights = merged(base, state.adapter, self.settings.lora)
        chunks = split(tasks, self.settings.gpus)
        return [group for chunk in self.execute(weights, chunks, plan) for group in chunk]

    def _reward_metrics(self, groups: list[list[Rollout]], rewards: Floats) -> None:
        samples = rewards.shape[1]
        self.metrics |= {
            f"reward/avg_pass_at_{samples}": float((rewards > 0).any(axis=1).mean()),
            "reward/avg_raw_reward": float(rewards.mean()),
            "reward/mean_positive_reward": float(np.maximum(rewards, 0).mean()),
            **_environment_metrics([rollout for group in groups for rollout in group]),
        }

    def _save(self, base: dict[str, Floats], state: State) -> None:
        s = self.settings
        with self._timed("save_checkpoints"):
            checkpoint.save(
                s.checkpoints, state, base=base, world=s.gpus, lora=s.lora, values=s.values,
                steps_per_epoch=s.steps_per_epoch, keep=s.keep, progress=self.progress, redone_above=self._redone_above,
            )  # fmt: skip
        self._redone_above = None

    def _export(self, state: State) -> None:
        s = self.settings
        with self._timed("save_hf_model"):
            name = str(s.values["trainer.policy.model.path"])
            checkpoint.export(s.exports, state, lora=s.lora, base=name, progress=self.progress)

    def _sync(self, state: State) -> None:
        """Overwrite the adapter that engines would load, in place, as SkyRL does at every step."""
        if self.settings.lora_sync is not None:
            for name, content in checkpoint.adapter_files(state.adapter, self.settings.lora, base="").items():
                self.progress(f"sync {name}")
                shared.write(self.settings.lora_sync / name, content)

    def _dump(self, step: int, rollouts: list[Rollout], metrics: Metrics) -> None:
        rows = [
            {
                "input_prompt": "<image>",
                "output_response": "".join(utterance(word) for word in rollout.words),
                "score": [0.0] * (len(rollout.words) - 1) + [rollout.reward],  # one entry per turn
                "stop_reason": "stop",
                "env_class": "visgym",
                "env_extras": {"visgym_env_id": "maze_2d/easy", "seed": seed, "max_turns": self.settings.evaluation.max_turns},
                "data_source": "unknown",
                "stand_in": shared.STAND_IN,
            }
            for seed, rollout in zip(HELD_OUT, rollouts, strict=True)
        ]
        files = {
            "unknown.jsonl": "".join(json.dumps(row) + "\n" for row in rows).encode(),
            "aggregated_results.jsonl": (
                json.dumps({**metrics, "oracle_bound": self._solvable() / len(HELD_OUT), "stand_in": shared.STAND_IN}) + "\n"
            ).encode(),
        }
        target = self.settings.exports / "dumped_evals" / f"global_step_{step}_evals"
        target.parent.mkdir(parents=True, exist_ok=True)
        shared.write_folder(target, files, progress=lambda name: self.progress(f"dump {name}"))

    def _solvable(self) -> int:
        return oracle_bound((maze(seed) for seed in HELD_OUT), max_turns=self.settings.evaluation.max_turns)

    def _bound(self) -> None:
        turns = self.settings.evaluation.max_turns
        self.log(f"Oracle bound: {self._solvable()} of {len(HELD_OUT)} held-out mazes can be solved within {turns} turns")

    def _flush(self, step: int) -> None:
        self.log_step(step, dict(sorted(self.metrics.items())))
        self.metrics = {}

    @contextmanager
    def _timed(self, name: str) -> Any:
        started = time.perf_counter()
        yield
        self.metrics[f"timing/{name}"] = time.perf_counter() - started


def _environment_metrics(rollouts: Sequence[Rollout]) -> dict[str, float]:
    return {
        "environment/avg_format_success_rate": float(np.mean([rollout.format_rate for rollout in rollouts])),
        "environment/avg_format_successes": float(np.mean([rollout.well_formed for rollout in rollouts])),
        "environment/avg_parse_failures": float(np.mean([len(r.words) - r.well_formed for r in rollouts])),
        "environment/avg_step_count": float(np.mean([len(rollout.words) for rollout in rollouts])),
    }
