"""CDK app: reads the environment and wires its stacks. `cdk synth | diff | deploy | destroy --all -c env=NAME|FILE [-c account=ID]`."""

from __future__ import annotations

import json
import os
import signal
import sys
from typing import Any

# CDK's own template check starts a WebAssembly engine that takes longer than all else together, for what cfn-lint checks in
# the tests; `make synth` turns it on.
os.environ.setdefault("CDK_VALIDATION", "false")
if __name__ == "__main__":  # Ctrl-C ends it at once: where in jsii it was caught is no news for anybody
    signal.signal(signal.SIGINT, signal.SIG_DFL)

# Both of the above come before the JavaScript process starts, which the next line makes it do.
from aws_cdk import App

from config import load
from config.problems import Refused
from config.surroundings import refuse_elsewhere, worth_knowing


def feature_flags() -> dict[str, Any]:
    """CDK's feature flags from cdk.json, which the CLI reads in the working directory only: the templates must not depend on that."""
    flags: dict[str, Any] = json.loads((load.ROOT / "cdk.json").read_text(encoding="utf-8"))["context"]
    return flags


def main() -> int:
    """Synthesize. Returns 0, or 2 with one sentence for each problem on stderr."""
    # Asset metadata is the CLI's wish (cdk.json turns it off), which it forgets in another folder: ours comes after it.
    after_cli = {"aws:cdk:enable-asset-metadata": False}
    app = App(analytics_reporting=False, tree_metadata=False, context=feature_flags(), post_cli_context=after_cli)
    name = app.node.try_get_context("env")
    if name is None:  # an empty one is a variable that was not set, and is refused
        name = os.environ.get("HYPERPOD_RL_ENV") or "reference"
    account = app.node.try_get_context("account")
    try:
        settings = load.load(str(name), account=str(account) if account is not None else None)
        refuse_elsewhere(settings, os.environ)
    except Refused as refused:
        print(*refused.problems, sep="\n", file=sys.stderr)
        return 2
    for line in worth_knowing(settings):
        print(line, file=sys.stderr)
    # Only now: a wrong file is refused in a second, not after every module of CDK.
    from k8s import manifests
    from stacks.wiring import build

    stacks = build(app, settings)
    if app.node.try_get_context("nag"):  # AWS's own checks: a package of its own, so not in every synthesis
        from stacks.review import review

        review(app, stacks)
    try:
        manifests.write(settings)
    except OSError as error:
        print(f"dist/ cannot be written: {error.strerror or error} ({error.filename})", file=sys.stderr)
        return 3
    try:
        app.synth()
    except RuntimeError as error:
        if "ValidationFailed" not in str(error):
            raise
        return 1  # CDK has printed every finding
    return 0


if __name__ == "__main__":
    sys.exit(main())
