"""Every pull request of pull_requests.yaml through the real `cdk diff`, against its base deployed on a local cloud.

    python -m tests.operations.review.cdk_diff [ENVIRONMENT ...]

Prints one line each and ends with 1 if `cdk diff` reports a replacement that the review does not. Minutes, so no part of the tests.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path

from local import lifecycle, state
from operations.review.compare import compare
from operations.review.sides import Side
from tests.operations.review.revisions import base, head, pull_requests

STACK = re.compile(r"^Stack (\w+)")
# `[~] AWS::FSx::FileSystem FileSystem replace`, `... may be replaced`; the logical id stands last before the word.
RESOURCE = re.compile(r"^\[[~+-]\] \S+ (?:\S+ )*?(\w+) (replace|may be replaced)$")
ANSI = re.compile(r"\x1b\[[0-9;]*m")


def replacements(said: str, *words: str) -> set[str]:
    """`Stack/LogicalId` of everything of which `cdk diff` says one of these words."""
    found, stack = set(), ""
    for line in ANSI.sub("", said).splitlines():
        if match := STACK.match(line):
            stack = match[1]
        elif (match := RESOURCE.match(line.strip())) and match[2] in words:
            found.add(f"{stack}/{match[1]}")
    return found


def cdk(*words: str, account: str, check: bool = True) -> str:
    """Run the CDK CLI with the local cloud's variables; prints what it said if it failed, and raises CalledProcessError if `check`."""
    # Any access key is its account's there; the same words as lifecycle.environment() otherwise.
    variables = {**os.environ, **lifecycle.environment(), "AWS_ACCESS_KEY_ID": account}
    done = subprocess.run(["cdk", *words], cwd=state.ROOT, env=variables, text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    if done.returncode:
        print(done.stdout[-3000:])
        if check:
            done.check_returncode()
    return done.stdout


def main(environments: list[str]) -> int:
    """0 if nothing was missed, else 1; 2 for an environment of which there is no pull request."""
    known = dict.fromkeys(each.environment for each in pull_requests())
    if strange := [name for name in environments if name not in known]:
        print(f"no pull request is of {', '.join(strange)}; these have some: {', '.join(known)}", file=sys.stderr)
        return 2
    requests = [each for each in pull_requests() if not environments or each.environment in environments]
    missed = 0
    with tempfile.TemporaryDirectory() as folder:
        os.environ[state.FOLDER] = str(Path(folder) / "state")
        lifecycle.up(node_delay=0.2)
        try:
            for environment in dict.fromkeys(each.environment for each in requests):
                out = Path(folder) / environment
                older = base(environment, out)
                account = older.stacks[0].place.removeprefix("aws://").partition("/")[0]
                cdk("bootstrap", f"aws://{account}/us-west-2", "--app", str(out), account=account)
                # A stack that fails here rolls back and has nothing to replace; all others are compared.
                cdk("deploy", "--all", "--require-approval", "never", "--concurrency", "3", "--app", str(out), account=account, check=False)
                for request in requests:
                    if request.environment == environment:
                        missed += check(request.name, older, head(request, place := out / request.name), place, environment, account)
        finally:
            lifecycle.down(purge=True)
    print(f"{len(requests)} pull requests, {missed} replacements missed")
    return 1 if missed else 0


def check(name: str, older: Side, newer: Side, place: Path, environment: str, account: str) -> int:
    """Compare one; returns how many replacements the review missed."""
    if newer.stacks[0].place != older.stacks[0].place:
        print(f"{name}: another account, of which nothing is deployed")
        return 0
    # By change set: what the cloud would replace. Its `may be` is the local cloud's for every type that it does not know, so that
    # word is taken from the comparison of templates, which is CDK's own knowledge of AWS.
    theirs = replacements(cdk("diff", "--app", str(place), account=account), "replace")
    theirs |= replacements(cdk("diff", "--method", "template", "--app", str(place), account=account), "replace", "may be replaced")
    review = compare(environment, older, newer)
    ours = {change.id for stack in review.stacks for change in stack.resources if change.action == "replaced" or change.perhaps}
    gone = theirs - ours
    print(f"{name}: cdk diff {len(theirs)}, review {len(ours)}" + (f", MISSED {sorted(gone)}" if gone else ""), flush=True)
    return len(gone)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
