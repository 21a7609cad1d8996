"""`python -m k8s --env NAME|FILE`: write an environment's manifests to dist/, print the folder and the digest."""

from __future__ import annotations

import argparse
import json
import os
import sys
from pathlib import Path
from typing import NoReturn

from config.environment import Environment
from config.load import load
from config.problems import Problem, Refused


def main(arguments: list[str] | None = None) -> int:
    """Exit code 0; 2 with one sentence per problem and nothing written; 3 with one sentence if the system refused to read or write."""
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
        print(end="", flush=True)  # a full disk is noticed here; does nothing where standard output is closed
    except Refused as refused:
        print(refused, file=sys.stderr)
        return 2
    except BrokenPipeError:
        return 141  # as a shell reports SIGPIPE
    except OSError as error:
        print(Problem(str(error.filename or "output"), "", f"it cannot be read or written ({error.strerror or error})"), file=sys.stderr)
        return 3
    except KeyboardInterrupt:
        print("interrupted.", file=sys.stderr)
        return 130
    except Exception as error:
        if os.environ.get("HYPERPOD_RL_DEBUG"):
            raise
        said = " ".join(str(error).split())[:300].rstrip(".")
        print(Problem("manifests", "", f"{type(error).__name__}: {said}", "HYPERPOD_RL_DEBUG=1 shows where"), file=sys.stderr)
        return 3
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


def _end(code: int) -> NoReturn:
    try:
        print(end="", flush=True)
    except OSError:  # said before; Python flushes once more at exit and would complain there
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    sys.exit(code)


if __name__ == "__main__":
    _end(main())
