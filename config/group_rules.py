"""Rules for what an environment writes on its instances: labels, taints and tags; and where a training plan is."""

from __future__ import annotations

import re
from collections.abc import Iterator

from config.environment import DOCUMENTATION_ACCOUNT, Environment
from config.problems import Problem

# https://kubernetes.io/docs/concepts/overview/working-with-objects/labels/#syntax-and-character-set
NAME = re.compile(r"([A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?)")
PREFIX = re.compile(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*")
SYNTAX = "letters, digits, `-`, `_` and `.`, at most 63 of them, the first and the last a letter or a digit"
# https://docs.aws.amazon.com/tag-editor/latest/userguide/tagging.html: 50 a resource, of which stacks and CDK want some of their own.
TAG = re.compile(r"[\w\s.:/=+\-@]*")
MOST_TAGS = 40
# https://docs.aws.amazon.com/sagemaker/latest/APIReference/API_ClusterKubernetesConfig.html
MOST_LABELS = 50


def is_key(text: str) -> bool:
    """Whether Kubernetes takes this as the key of a label or of a taint."""
    prefix, slash, name = text.rpartition("/")
    return bool(NAME.fullmatch(name)) and (not slash or (len(prefix) <= 253 and bool(PREFIX.fullmatch(prefix))))


def is_value(text: str) -> bool:
    """Whether Kubernetes takes this as the value of a label or of a taint."""
    return not text or bool(NAME.fullmatch(text))


def labels_and_taints(env: Environment) -> Iterator[Problem]:
    """Kubernetes refuses a node whose labels it cannot read, which HyperPod would only tell when nodes fail to join."""
    for index, group in enumerate(env.instance_groups):
        for what, count in (("labels", len(group.labels)), ("taints", len(group.taints))):
            if count > MOST_LABELS:
                field = f"instance_groups[{index}].{what}"
                yield Problem(field, f"{count} {what}", f"HyperPod takes at most {MOST_LABELS} of a group", f"keep {MOST_LABELS}")
        pairs = [(f"labels.{key}", key, value) for key, value in group.labels.items()]
        pairs += [(f"taints[{number}]", taint.key, taint.value) for number, taint in enumerate(group.taints)]
        for where, key, value in pairs:
            field = f"instance_groups[{index}].{where}"
            if not is_key(key):
                yield Problem(field, key, f"the key has {SYNTAX}", "for example team or example.com/team")
            if not is_value(value):
                yield Problem(field, value, f"the value has {SYNTAX}", "for example rl")


def named_once(env: Environment) -> Iterator[Problem]:
    """What Kubernetes or HyperPod refuses to hear twice: a taint is known by its key and its effect."""
    for index, group in enumerate(env.instance_groups):
        taints = [f"{taint.key}:{taint.effect}" for taint in group.taints]
        checks = [str(check) for check in group.deep_health_checks]
        for field, listed in (("taints", taints), ("deep_health_checks", checks)):
            for name in sorted({name for name in listed if listed.count(name) > 1}):
                yield Problem(f"instance_groups[{index}].{field}", name, "it stands there more than once", "name it once")


def plan_is_here(env: Environment) -> Iterator[Problem]:
    """A training plan is capacity of one account in one region."""
    for index, group in enumerate(env.instance_groups):
        if group.training_plan_arn is None:
            continue
        _, _, _, region, account, _ = group.training_plan_arn.split(":", 5)
        field = f"instance_groups[{index}].training_plan_arn"
        if region != env.region:
            yield Problem(
                field, group.training_plan_arn, f"the plan is in {region}, the environment in {env.region}", "name one of this region"
            )
        if account != env.account and env.account != DOCUMENTATION_ACCOUNT:
            yield Problem(field, group.training_plan_arn, f"the plan belongs to account {account}, the environment to {env.account}",
                          "name one of this account")  # fmt: skip


def tags_fit(env: Environment) -> Iterator[Problem]:
    """What AWS refuses as a tag of a resource."""
    for key, value in env.tags.items():
        if key.lower().startswith("aws:"):
            yield Problem(f"tags.{key}", value, "tags that begin with aws: are AWS's own", "choose another key")
        elif key.startswith("hyperpod-rl-"):
            yield Problem(f"tags.{key}", value, "by these tags an environment's resources are found", "choose another key")
        elif not TAG.fullmatch(key) or not TAG.fullmatch(value):
            yield Problem(f"tags.{key}", value, "a tag has letters, digits, spaces and _ . : / = + - @", "leave other characters out")
    if len(env.tags) > MOST_TAGS:
        yield Problem(
            "tags", f"{len(env.tags)} tags", "a resource has at most 50, and some are the project's and AWS's", f"keep {MOST_TAGS}"
        )


RULES = (labels_and_taints, named_once, plan_is_here, tags_fit)
