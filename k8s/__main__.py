"""`python -m k8s --env NAME|FILE`: write an environment's manifests to dist/, print the folder and the digest."""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path

from config.environment import Environment
from config.load import load
from config.problems import Problem, Refused


def main(arguments: list[str] | None = None) -> int:
    """Exit code 0, or 2 with one sentence per problem and nothing written."""
    parser = argparse.ArgumentParser(
        prog="python -m k8s", description="Write an environment's Kubernetes manifests to dist/<environment>/."
    )
    parser.add_argument("--env", default="reference", metavar="NAME|FILE", help="name or file of an environment (default: reference)")
    parser.add_argument("--account", help="account instead of the file's")
    parser.add_argument(
        "--ray-job",
        metavar="FILE",
        help="print a run as a RayJob instead; FILE (or -) is what `hyperpod-rl submit --dry-run --json` printed",
    )
    given = parser.parse_args(arguments)
    try:
        env = load(given.env, account=given.account)
        if given.ray_job:
            _print_ray_job(env, given.ray_job)
        else:
            _write(env)
    except Refused as refused:
        print(refused, file=sys.stderr)
        return 2
    return 0


def _write(env: Environment) -> None:
    from config.capacity import serving_upgrade, sharing_notice
    from k8s import manifests, model  # starts the JavaScript kernel, so only for an environment that is right

    folder = manifests.write(env)
    upgrade = serving_upgrade(env)
    print(folder)
    print(f"sha256:{manifests.digest(folder)}")
    print(f"RayService upgrade strategy {upgrade.strategy}: {upgrade.reason}")
    if notice := sharing_notice(env):
        print(notice)
    if why := model.missing(env):
        print(f"no Job fetches the base model: {why}")


def _print_ray_job(env: Environment, file: str) -> None:
    from k8s import manifests, rayjob

    try:
        document = json.loads(sys.stdin.read() if file == "-" else Path(file).read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise Refused(
            Problem("--ray-job", file, f"it cannot be read as JSON ({error})", "make it with `submit --dry-run --json`")
        ) from None
    print(manifests.dump(rayjob.ray_job(env, rayjob.from_document(document))), end="")


if __name__ == "__main__":
    sys.exit(main())
