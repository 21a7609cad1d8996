"""IP addresses for the nodes, and room for the pods that the platform itself brings."""

from __future__ import annotations

from collections.abc import Iterator
from ipaddress import ip_network

from config.network_rules import KEPT_BY_EC2, addresses
from operations.doctor.check import Finding, Subject, failed, ok

# Pods of the daemon sets on one GPU node (CNI, kube-proxy, pod identity, FSx CSI, health agent, two device plugins, collectors): inferred.
DAEMON_PODS = 11
# coredns 2, metrics-server 2, cert-manager 3, FSx CSI 2, KubeRay 1, observability and endpoint operators about 10: inferred.
CONTROLLER_PODS = 20


def nodes(subject: Subject) -> Iterator[Finding]:
    """The range holds every address, and every group the daemon pods: a node of 14 pods was seen to be full with all add-ons on.

    https://github.com/awslabs/ai-on-sagemaker-hyperpod/issues/142
    """
    env = subject.environment
    if env.network.existing is None:
        size = ip_network(env.network.hyperpod_cidr).num_addresses - KEPT_BY_EC2
        yield enough(
            addresses(env.instance_groups), size, f"network.hyperpod_cidr {env.network.hyperpod_cidr} has {size}", "choose a larger range"
        )
    small = [group for group in env.instance_groups if group.instance.max_pods < DAEMON_PODS + 1]
    for group in small:
        pods = group.instance.max_pods
        yield failed(
            f"group {group.name}: {group.instance_type} takes {pods} pods, and about {DAEMON_PODS} daemon pods come first",
            "choose a larger instance type",
        )
    hosts = [group for group in env.instance_groups if group.count and not group.taints]
    room = sum(group.count * max(0, group.instance.max_pods - DAEMON_PODS) for group in hosts)
    where = ", ".join(group.name for group in hosts)
    if hosts and room < CONTROLLER_PODS:
        yield failed(
            f"controllers are about {CONTROLLER_PODS} pods (inferred), and the groups {where} have room for {room}",
            "raise the count of a system group, or choose a larger type",
        )
    elif not small:
        yield ok(f"pods: room for {room} beside the daemons in {where}, about {CONTROLLER_PODS} come (inferred)")


def enough(wanted: int, there: int, said: str, fix: str) -> Finding:
    """Whether the nodes' addresses fit."""
    if wanted > there:
        return failed(f"the nodes take up to {wanted} addresses, and {said}", fix)
    return ok(f"addresses: up to {wanted}, {said}")
