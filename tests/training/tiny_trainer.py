"""A trainer that trains nothing: SkyRL's overrides in, its console format, checkpoint marker and eval dump out; resumes.

`python tiny_trainer.py key=value …`; steps = trainer.epochs, a checkpoint each trainer.ckpt_interval steps. At step
$TINY_WAIT_AT it waits until the file $TINY_GO exists, so that a test can act in the middle of a run.
"""

from __future__ import annotations

import json
import os
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from tests.training.console_text import line, step


def main() -> None:
    shared = os.environ["TINY_SHARED"]  # the folder that stands for /shared on this machine
    values = dict(word.replace("=/shared/", f"={shared}/").split("=", 1) for word in sys.argv[1:])
    steps, every = int(values["trainer.epochs"]), int(values["trainer.ckpt_interval"])
    checkpoints, exports = Path(values["trainer.ckpt_path"]), Path(values["trainer.export_path"])
    marker = checkpoints / "latest_ckpt_global_step.txt"
    first = int(marker.read_text()) + 1 if marker.is_file() else 0
    checkpoints.mkdir(parents=True, exist_ok=True)
    (checkpoints / "pid").write_text(str(os.getpid()))
    for number in range(first, steps):
        wait_at, go = os.environ.get("TINY_WAIT_AT"), Path(os.environ.get("TINY_GO", "/nonexistent"))
        while wait_at == str(number) and not go.exists():
            time.sleep(0.05)
        metrics: dict[str, object] = {"reward/avg_raw_reward": number / steps, "timing/step": 0.01, "trainer/global_step": number}
        if number % 5 == 0:
            folder = exports / "dumped_evals" / f"global_step_{number}_evals"
            folder.mkdir(parents=True, exist_ok=True)
            rows = [{"score": [0.0, 1.0 if maze < number else 0.2]} for maze in range(64)]
            (folder / "unknown.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
            (folder / "aggregated_results.jsonl").write_text(json.dumps({"oracle_bound": 0.75}) + "\n")
            metrics |= {"eval/all/avg_score": 0.5, "eval/all/pass_at_1": 1.0, "eval/all/environment/avg_format_success_rate": 1.0}
        sys.stderr.write(line(f"noise before step {number}") + step(number, metrics, worker=""))
        sys.stderr.flush()
        if number % every == 0:
            (checkpoints / f"global_step_{number}").mkdir(exist_ok=True)
            (checkpoints / "next").write_text(str(number))
            (checkpoints / "next").replace(marker)
    sys.stderr.write(line("Training done!", worker=""))


if __name__ == "__main__":
    main()
