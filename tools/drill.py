"""`make drill`: every resource of an environment is made to fail at its creation once, and what is left afterwards is listed.

The templates are made in this process and put into a local cloud of its own, stack after stack from the lowest. Before a stack
comes up for good each of its resources fails once, by its logical id: the stack rolls back and is deleted, and then the cloud must
hold exactly what it held before. In the end all stacks are deleted from the highest down, and what stays then must be what the
templates retain, resource by resource. So each row says what a deploy that fails there, and a destroy after it, would leave.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from config import load
from config.environment import Environment
from config.problems import Failed, Refused, Unreachable
from config.surroundings import refuse_elsewhere
from local import lifecycle, state
from tools.deployment import Assembly, Cloud, synthesize

RETAINED = ("Retain", "RetainExceptOnCreate")
# The objects that `cdk deploy` puts beside the stacks; they stay in the bucket of `cdk bootstrap` on AWS, too.
ASSETS = "s3://cdk-"
# What the inventory calls what lives in the Kubernetes cluster.
INSIDE = "Kubernetes object: "
Inventory = Mapping[str, Sequence[str]]


@dataclass(frozen=True)
class Row:
    """What became of one resource that failed: `status` of its stack after that, and what the cloud holds beyond what it held before.

    `inside` are objects of the Kubernetes cluster that Helm keeps at an uninstall (kinds, namespaces): they go with the cluster, which
    the last destroy of the drill shows.
    """

    resource: str
    type: str
    status: str
    seconds: float
    left: tuple[str, ...] = ()
    inside: tuple[str, ...] = ()

    @property
    def good(self) -> bool:
        """Whether the stack rolled back, went, and left nothing."""
        return self.status == "ROLLBACK_COMPLETE" and not self.left


@dataclass
class Report:
    """The rows, what the last destroy kept because the templates say so, and what it left against them."""

    environment: str
    rows: list[Row] = field(default_factory=list)
    kept: list[str] = field(default_factory=list)
    left: list[str] = field(default_factory=list)

    @property
    def good(self) -> bool:
        """Whether nothing was left that the removal mode does not keep."""
        return not self.left and all(row.good for row in self.rows)


def drill(settings: Environment, assembly: Assembly, only: Sequence[str] | None = None) -> Iterator[Row | Report]:
    """Rows as they come, then the report. `only`: the resources that fail; all by default."""
    cloud = Cloud(settings)
    cloud.prepare(assembly)
    report = Report(settings.name)
    begun = _inventory()
    retained: dict[str, str] = {}
    for stack, template in assembly.templates.items():
        before = _inventory()
        for logical, body in template["Resources"].items():
            name = f"{stack}/{logical}"
            if only is None or name in only:
                row = _failed(cloud, stack, template, logical=logical, kind=body["Type"], before=before)
                report.rows.append(row)
                yield row
        lifecycle.set_faults([])
        if (status := cloud.create(stack, template)) != "CREATE_COMPLETE":
            raise Failed(f"stack {stack} did not come up ({status}): {'; '.join(cloud.failures(stack))}")
        physical = cloud.physical(stack)
        kept = (logical for logical, body in template["Resources"].items() if body.get("DeletionPolicy") in RETAINED)
        retained |= {physical[logical]: f"{stack}/{logical}" for logical in kept if logical in physical}
    for stack in reversed(list(assembly.templates)):
        if (status := cloud.delete(stack)) != "DELETE_COMPLETE":
            report.left.append(f"stack {stack}: {status}: {'; '.join(cloud.failures(stack))}")
    retained |= cloud.belongings(retained)
    for line in _more(begun, _inventory()):
        owner = next((retained[identifier] for identifier in sorted(retained, key=len, reverse=True) if identifier in line), None)
        (report.left if owner is None else report.kept).append(line if owner is None else f"{owner} ({line})")
    yield report


def _failed(cloud: Cloud, stack: str, template: Mapping[str, Any], *, logical: str, kind: str, before: Inventory) -> Row:
    """One resource fails, its stack rolls back and is deleted."""
    reason = f"drill of {logical}"
    begin = time.monotonic()
    lifecycle.set_faults([{"resource": f"{logical}$", "action": "create", "fail": reason}])
    status = cloud.create(stack, template)
    reasons = cloud.failures(stack)
    if not any(reason in text for text in reasons):
        status = f"{status} for another reason: {'; '.join(reasons) or 'none'}"
    lifecycle.set_faults([])
    if (deleted := cloud.delete(stack)) != "DELETE_COMPLETE":
        status = f"{status}, then {deleted}: {'; '.join(cloud.failures(stack)[:3])}"
    more = _more(before, _inventory())
    inside = tuple(line for line in more if line.startswith(INSIDE))
    left = tuple(line for line in more if line not in inside)
    return Row(f"{stack}/{logical}", kind, status, round(time.monotonic() - begin, 2), left, inside)


def _inventory() -> Inventory:
    return lifecycle.inventory()


def _more(before: Inventory, after: Inventory) -> list[str]:
    """What is there beyond what was, one line each."""
    found = []
    for kind, members in sorted(after.items()):
        known = list(before.get(kind, ()))
        for member in members:
            if member in known:
                known.remove(member)
            elif not (kind == "S3 object" and member.startswith(ASSETS)):
                found.append(f"{kind}: {member}")
    return found


def run(name: str, *, quick: bool, report_to: Path | None) -> int:
    """Drill an environment in a local cloud of its own. Returns 0, or 1 when something was left."""
    settings = load.load(name)
    refuse_elsewhere(settings, {})
    with tempfile.TemporaryDirectory(prefix="hd-") as folder:
        os.environ[state.FOLDER] = str(Path(folder) / "state")
        print(f"synthesizing {settings.name}", flush=True)
        assembly = synthesize(settings, Path(folder) / "out")
        only = assembly.one_of_each() if quick else None
        wanted = list(assembly.resources()) if only is None else list(only)
        print(f"{len(wanted)} of {len(assembly.resources())} resources fail once each", flush=True)
        lifecycle.up(node_delay=0.05)
        try:
            report = _printed(drill(settings, assembly, only), len(wanted))
        finally:
            lifecycle.down(purge=True)
    missing = sorted(set(wanted) ^ {row.resource for row in report.rows})
    if report_to:
        report_to.parent.mkdir(parents=True, exist_ok=True)
        report_to.write_text(json.dumps({**asdict(report), "good": report.good and not missing}, indent=1) + "\n")
        print(f"every row is in {report_to}")
    for line in [*(f"not drilled: {name}" for name in missing), *(f"left: {line}" for line in report.left)]:
        print(line)
    print(f"kept by storage.removal {settings.storage.removal}: {', '.join(report.kept) or 'nothing'}")
    bad = sum(not row.good for row in report.rows)
    print(f"{len(report.rows)} resources of {settings.name} failed once each: {len(report.rows) - bad} left nothing, {bad} did not")
    return 0 if report.good and not missing else 1


def _printed(found: Iterator[Row | Report], count: int) -> Report:
    for number, item in enumerate(found, start=1):
        if isinstance(item, Report):
            return item
        inside = f", {len(item.inside)} objects in the Kubernetes cluster" if item.inside else ""
        said = f"nothing left{inside}" if item.good else f"{item.status}; left: {', '.join(item.left) or 'nothing'}"
        print(f"{number:>4}/{count} {item.resource} ({item.type}): {said} ({item.seconds} s)", flush=True)
    raise AssertionError("a drill ends with its report")


def main() -> int:
    """Command line of `make drill`."""
    parser = argparse.ArgumentParser(prog="make drill", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--env", default="reference", metavar="NAME|FILE")
    parser.add_argument("--quick", action="store_true", help="one resource of each type, and every role")
    parser.add_argument("--report", type=Path, default=Path("build/drill.json"), metavar="FILE", help="rows as JSON (default: %(default)s)")
    given = parser.parse_args()
    try:
        return run(given.env, quick=given.quick, report_to=given.report)
    except (Refused, Failed, Unreachable) as error:
        print(f"drill: {error}", file=sys.stderr)
        return 2 if isinstance(error, Refused) else 3 if isinstance(error, Unreachable) else 1
    except KeyboardInterrupt:
        print("drill: interrupted; its local cloud was ended", file=sys.stderr)
        return 130


if __name__ == "__main__":
    sys.exit(main())
