"""Looks at every kind, and leaves out what a stack still owns or needs."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor

from config import names
from config.environment import Environment
from config.names import Stack
from operations.aws import Aws, Unanswered
from operations.leaks import network, services, storage
from operations.leaks.leak import Found, Leak, Ours, in_use

AT_ONCE = 8
# In the order in which they can be removed: what uses comes before what is used.
SCANS: Sequence[Callable[[Aws, Ours], Iterator[Leak]]] = (
    services.stacks, services.studio, services.hyperpod, services.eks, services.functions,
    services.state_machines, services.builds, services.records,
    network.load_balancers, network.classic_balancers, network.target_groups, network.endpoints, network.nat_gateways,
    network.interfaces, storage.efs, storage.file_systems, network.security_groups, network.addresses, network.internet_gateways,
    network.subnets, network.route_tables, network.networks, storage.volumes, storage.snapshots, storage.backups, storage.buckets,
    storage.repositories, storage.assets, services.grafana, services.prometheus, services.alarms, services.topics,
    services.budgets,
    services.certificates, services.log_groups,
    services.parameters, services.roles, storage.keys,
)  # fmt: skip


def scan(env: Environment, aws: Aws) -> Found:
    """Read-only. Raises Unanswered if AWS does not even say which stacks there are."""
    alive, managed = _stacks(env, aws)
    blind = ""
    try:
        ours = Ours(env, network.vpcs(aws, Ours(env)))
    except Unanswered as error:
        ours, blind = Ours(env), str(error).rstrip(".")

    def look(one: Callable[[Aws, Ours], Iterator[Leak]]) -> tuple[list[Leak], str]:
        seen: list[Leak] = []
        try:
            seen += one(aws, ours)
        except Unanswered as error:
            return seen, str(error).rstrip(".")
        return seen, ""

    with ThreadPoolExecutor(AT_ONCE) as pool:
        found = list(pool.map(look, SCANS))
    return Found(
        tuple(leak for leaks, _ in found for leak in leaks if not in_use(leak, alive=alive, managed=managed)),
        tuple(dict.fromkeys(text for text in (blind, *(text for _, text in found)) if text)),
        tuple(which for which in Stack if which in alive),
    )


def _stacks(env: Environment, aws: Aws) -> tuple[frozenset[Stack], frozenset[str]]:
    """The environment's stacks that are whole, and the physical ids of everything that its stacks own."""
    wanted = {names.stack(env, which): which for which in Stack}
    there = {item["StackName"]: item["StackStatus"] for item in aws.pages("cloudformation", "list_stacks", "StackSummaries")
             if item["StackName"] in wanted and item["StackStatus"] != "DELETE_COMPLETE"}  # fmt: skip

    def resources(stack: str) -> list[str]:
        listed = aws.pages("cloudformation", "list_stack_resources", "StackResourceSummaries", StackName=stack)
        return [str(item["PhysicalResourceId"]) for item in listed
                if item.get("PhysicalResourceId") and item.get("ResourceStatus") != "DELETE_COMPLETE"]  # fmt: skip

    with ThreadPoolExecutor(AT_ONCE) as pool:
        managed = [identifier for ids in pool.map(resources, there) for identifier in ids]
    alive = frozenset(wanted[name] for name, status in there.items() if status not in services.STUCK)
    return alive, frozenset(managed)
