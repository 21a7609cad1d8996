"""One thing that was left, and whose it is."""

from __future__ import annotations

import re
import shlex
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from config import names
from config.environment import Environment
from config.names import Stack

ENVIRONMENT_TAG, REGION_TAG = "hyperpod-rl-environment", "hyperpod-rl-region"
STACK_TAG, STACK_ID_TAG = "aws:cloudformation:stack-name", "aws:cloudformation:stack-id"
# What controllers write on what they make for a cluster. `kubernetes.io/cluster/<name>` says `shared` on what is not theirs.
CLUSTER_TAGS = (
    "elbv2.k8s.aws/cluster", "aws:eks:cluster-name", "eks:eks-cluster-name", "cluster.k8s.amazonaws.com/name", "KubernetesCluster",
)  # fmt: skip


@dataclass(frozen=True)
class Leak:
    """`kept`: data that `storage.removal` keeps on purpose. `alive_with`: while this stack is whole, the thing is in use, no leak.

    `ids` are the physical ids under which a stack may own it. `commands` are shell lines, to be run in this order.
    """

    kind: str
    id: str
    made_by: str
    cost: str
    commands: tuple[str, ...]
    name: str = ""
    kept: str = ""
    alive_with: Stack | None = None
    ids: frozenset[str] = frozenset()

    @property
    def sentence(self) -> str:
        """For people, without the commands."""
        shown = f"{self.id} ({self.name})" if self.name and self.name != self.id else self.id
        return f"{self.kind} {shown}: {self.made_by}; {self.cost}" + (f"; {self.kept}" if self.kept else "")

    def document(self) -> dict[str, Any]:
        """For programs."""
        return {
            "kind": self.kind, "id": self.id, "name": self.name, "made_by": self.made_by, "cost": self.cost,
            "kept": self.kept, "commands": list(self.commands),
        }  # fmt: skip


@dataclass(frozen=True)
class Ours:
    """Tells what belongs to one environment: by tag first, by name where a service has no tags. `vpcs`: the environment's own VPCs."""

    environment: Environment
    vpcs: frozenset[str] = frozenset()

    @cached_property
    def base(self) -> str:
        """What the EKS cluster, the HyperPod cluster, the workspaces and the Studio domain are called."""
        return names.eks_cluster(self.environment)

    @cached_property
    def stacks(self) -> frozenset[str]:
        """CloudFormation stack names."""
        return frozenset(names.stack(self.environment, which) for which in Stack)

    def tagged(self, tags: Mapping[str, str]) -> str | None:
        """Who made what carries these tags, if it was this environment or a controller of its cluster; else None.

        A tag that names somebody else outweighs every other.
        """
        environment, stack = tags.get(ENVIRONMENT_TAG), tags.get(STACK_TAG)
        if environment not in (None, self.environment.name) or (stack is not None and stack not in self.stacks):
            return None
        stack_region = tags.get(STACK_ID_TAG, "").split(":")[3:4]
        if {tags.get(REGION_TAG, self.environment.region), *stack_region} != {self.environment.region}:
            return None
        if stack is not None:
            return f"made by stack {stack}"
        if environment is not None:
            return f"made for environment {environment}"
        if tags.get(f"kubernetes.io/cluster/{self.base}") == "owned":
            return f"made by a controller of EKS cluster {self.base}"
        for key in CLUSTER_TAGS:
            if tags.get(key) == self.base:
                return f"made by a controller of EKS cluster {self.base}"
        return None

    def foreign(self, tags: Mapping[str, str]) -> bool:
        """Whether tags name another environment, another stack or another cluster."""
        clusters = {tags[key] for key in CLUSTER_TAGS if key in tags}
        clusters |= {key.rpartition("/")[2] for key, value in tags.items() if key.startswith("kubernetes.io/cluster/") and value == "owned"}
        return bool(clusters - {self.base}) or (self.tagged(tags) is None and bool({ENVIRONMENT_TAG, STACK_TAG} & set(tags)))

    def named(self, name: str) -> str | None:
        """Who made what CloudFormation named (`<stack>-<logical id>-<random>`), or None."""
        for stack in self.stacks:
            if name == stack or name.startswith(f"{stack}-"):
                return f"made by stack {stack}"
        return None

    def stack_of(self, made_by: str) -> Stack | None:
        """The stack that a `made by stack …` names."""
        return next((which for which in Stack if made_by == f"made by stack {names.stack(self.environment, which)}"), None)

    def command(self, *words: str, region: bool = True) -> str:
        """An AWS CLI line that can be pasted into a shell."""
        return shlex.join(["aws", *(["--region", self.environment.region] if region else []), *words])


def tags_of(items: Iterable[Mapping[str, Any]] | Mapping[str, str] | None) -> dict[str, str]:
    """Tags as a mapping, from any of the forms that services use."""
    if isinstance(items, Mapping):
        return {str(key): str(value) for key, value in items.items()}
    found: dict[str, str] = {}
    for item in items or ():
        key = item.get("Key", item.get("key", item.get("TagKey")))
        found[str(key)] = str(item.get("Value", item.get("value", item.get("TagValue", ""))))
    return found


def monthly(gib: float, usd_per_gib: float) -> str:
    """A price by size. All of these are list prices from general knowledge, not looked up: so said."""
    return f"about {gib * usd_per_gib:.2f} USD a month (unverified)"


def physical_ids(*values: object) -> frozenset[str]:
    """The ids of a thing, with the last part of each ARN."""
    texts = [str(value) for value in values if value]
    return frozenset((*texts, *(re.split(r"[:/]", text)[-1] for text in texts if text.startswith("arn:"))))


def in_use(leak: Leak, *, alive: Collection[Stack], managed: Collection[str]) -> bool:
    """Whether a stack owns it, or needs it."""
    return leak.alive_with in alive or bool(leak.ids & frozenset(managed)) or leak.id in managed


@dataclass(frozen=True)
class Found:
    """What a scan saw, what it could not look at, and the stacks that stand: whole or being changed, so with what is in them no leaks."""

    leaks: tuple[Leak, ...] = ()
    unseen: tuple[str, ...] = field(default=())
    standing: tuple[Stack, ...] = ()
