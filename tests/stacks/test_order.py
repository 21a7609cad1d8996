"""What must exist before what. Each rule is also tested against an assembly without the one edge that it rests on."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import pytest

from tests.stacks.assembly import Assembly, Edge, Graph, graph


@dataclass(frozen=True)
class Rule:
    """`later` comes after `earlier`. `rests_on` are the edges of `reference` without which it does not."""

    name: str
    later: str
    earlier: str
    rests_on: tuple[Edge, ...]

    def holds(self, order: Graph) -> bool:
        return self.earlier in order.before(self.later)


def _resource(kind: str, stack: str, assembly: Assembly, holding: str = "") -> str:
    found = [name for name in assembly.resources(kind, stack) if holding in name]
    assert len(found) == 1, f"{kind} in {stack}: {found}"
    return found[0]


def rules(assembly: Assembly) -> list[Rule]:
    """The rules over the resources of an assembly."""
    chart = _resource("Custom::AWSCDK-EKS-HelmChart", "HyperPod", assembly)
    cluster = _resource("AWS::SageMaker::Cluster", "HyperPod", assembly)
    scripts = _resource("Custom::LifecycleScripts", "HyperPod", assembly)
    execution = _resource("AWS::IAM::Role", "HyperPod", assembly, "ExecutionRole")
    waiter = _resource("Custom::NodesReady", "NodesReady", assembly)
    seen = _resource("AWS::EKS::AccessEntry", "NodesReady", assembly)
    kuberay = _resource("Custom::AWSCDK-EKS-HelmChart", "Platform", assembly, "KubeRay")
    namespaces = _resource("Custom::AWSCDK-EKS-KubernetesResource", "Platform", assembly, "Namespaces")
    objects = _resource("Custom::AWSCDK-EKS-KubernetesResource", "Platform", assembly, "Objects")
    jobs = _resource("Custom::AWSCDK-EKS-KubernetesResource", "Platform", assembly, "Jobs")
    training = _resource("AWS::EKS::PodIdentityAssociation", "Platform", assembly, "Training")
    serving = _resource("AWS::EKS::PodIdentityAssociation", "Platform", assembly, "Serving")
    supervisor = _resource("AWS::EKS::PodIdentityAssociation", "Platform", assembly, "Supervisor")
    driver = _resource("AWS::EKS::Addon", "Platform", assembly, "FsxCsiDriver")
    drain = _resource("Custom::Drain", "Platform", assembly)
    rights = _resource("Custom::AWSCDK-EKS-KubernetesResource", "Platform", assembly, "DrainRights")
    entry = _resource("AWS::EKS::AccessEntry", "Platform", assembly, "Drain")
    collector = _resource("AWS::EKS::Addon", "Observability", assembly)
    handler_access = _resource("AWS::EKS::AccessEntry", "Cluster", assembly, "ClusterAdminRoleAccess")
    file_system = _resource("AWS::FSx::FileSystem", "Data", assembly)
    guard = _resource("Custom::Guard", "Data", assembly)
    mirrored = _resource("Custom::MirroredCharts", "Cluster", assembly)
    # Resources of CDK's own wait for it, too.
    into = tuple(edge for edge in graph(assembly).edges if edge[1] == handler_access)
    return [
        Rule("the guard before the file system", file_system, guard, ((file_system, guard),)),
        Rule("charts are mirrored before the first is installed", chart, mirrored, (("Cluster!", mirrored),)),
        Rule("dependency chart before the HyperPod cluster", cluster, chart, ((cluster, chart),)),
        Rule("lifecycle script before the HyperPod cluster", cluster, scripts, ((cluster, scripts),)),
        Rule("execution role with its policies before the HyperPod cluster", cluster, execution, ((cluster, execution),)),
        Rule("access entry before the wait for nodes", waiter, seen, ((waiter, seen),)),
        Rule("HyperPod before the wait for nodes", waiter, cluster, (("NodesReady", "HyperPod!"),)),
        Rule("nodes before the observability add-on", collector, waiter, (("Observability", "NodesReady!"),)),
        Rule("nodes before KubeRay, whose chart waits", kuberay, waiter, (("Platform", "NodesReady!"),)),
        Rule("file system before the objects that name it", objects, file_system, (("Platform", "Data!"), ("HyperPod", "Data!"))),
        Rule("namespaces before what is in them", objects, namespaces, ((objects, namespaces),)),
        Rule("claims before the jobs that mount them", jobs, objects, ((jobs, objects),)),
        Rule("file system driver before the jobs", jobs, driver, ((jobs, driver),)),
        Rule("training's identity before its pods", jobs, training, ((jobs, training),)),
        Rule("serving's identity before its pods", jobs, serving, ((jobs, serving),)),
        Rule("the supervisor's identity before its pods", jobs, supervisor, ((jobs, supervisor),)),
        Rule("KubeRay before the drain, so the drain goes first", drain, kuberay, ((drain, kuberay),)),
        Rule("the drain's rights before the drain", drain, rights, ((drain, rights),)),
        Rule("the drain's access before the drain", drain, entry, ((drain, entry),)),
        Rule("the kubectl handler's access before any chart", chart, handler_access, into),
        *(
            Rule(f"the kubectl handler's {name} before any chart", chart, f"Network/{name}", (("Network!", f"Network/{name}"),))
            for name in ("HandlersToControlPlane443Egress", "HandlersToControlPlane443Ingress")
        ),
    ]


def test_every_order_holds(assembly: Assembly) -> None:
    order = graph(assembly)
    assert [rule.name for rule in rules(assembly) if not rule.holds(order)] == []


def test_a_rule_fails_when_its_edge_is_gone_and_no_other_does(reference: Assembly) -> None:
    order, found = graph(reference), rules(reference)
    failing = {rule.name: {other.name for other in found if not other.holds(order.without(*rule.rests_on))} for rule in found}
    assert len(failing) == len(found), "two rules have one name"
    assert failing == {rule.name: {rule.name} for rule in found}


def test_access_and_network_of_the_handler_outlive_every_kubernetes_object(assembly: Assembly) -> None:
    """On delete the order is reversed: whatever the handler deletes must lie above its access entry and its security group."""
    order = graph(assembly)
    kinds = ("Custom::AWSCDK-EKS-KubernetesResource", "Custom::AWSCDK-EKS-HelmChart")
    objects = [name for kind in kinds for name in assembly.resources(kind)]
    needed = {
        next(name for name in assembly.resources("AWS::EKS::AccessEntry", "Cluster") if "ClusterAdminRoleAccess" in name),
        "Network/HandlersGroup",
        "Network/HandlersToControlPlane443Egress",
        "Network/HandlersToControlPlane443Ingress",
    }
    assert len(objects) > 5
    assert {name: needed - order.before(name) for name in objects if needed - order.before(name)} == {}


def test_everything_of_the_platform_comes_before_the_drain(assembly: Assembly) -> None:
    """What is not before the drain would go before it on delete, a controller for instance."""
    order = graph(assembly)
    (drain,) = assembly.resources("Custom::Drain", "Platform")
    kinds = ("AWS::EKS::Addon", "AWS::EKS::PodIdentityAssociation", "Custom::AWSCDK-EKS-HelmChart", "Custom::AWSCDK-EKS-KubernetesResource")
    platform = {name for kind in kinds for name in assembly.resources(kind, "Platform")}
    assert platform - order.before(drain) == set()


def test_file_system_and_every_group_are_in_one_zone(assembly: Assembly, assemblies: Callable[[str], Assembly]) -> None:
    """EFA does not cross zones and a file system wants its clients beside it: one subnet, by the id of its zone."""
    assert zones_of_data_and_nodes(assembly) == {"usw2-az2"}


def zones_of_data_and_nodes(assembly: Assembly) -> set[str]:
    """Zone ids of the subnets that the file system and the HyperPod cluster (with all its groups) are put into."""
    file_system = assembly.one("AWS::FSx::FileSystem")
    cluster = assembly.one("AWS::SageMaker::Cluster")
    assert not any("OverrideVpcConfig" in group for group in cluster["InstanceGroups"])
    zones = set()
    for stack, subnets in (("Data", file_system["SubnetIds"]), ("HyperPod", cluster["VpcConfig"]["Subnets"])):
        for subnet in subnets:
            name = assembly.templates[stack]["Parameters"][subnet["Ref"]]["Default"]
            (published,) = [
                body for body in assembly.resources("AWS::SSM::Parameter", "Network").values() if body["Properties"].get("Name") == name
            ]
            target = assembly.templates["Network"]["Resources"][published["Properties"]["Value"]["Ref"]]
            zones.add(target["Properties"]["AvailabilityZoneId"])
    return zones


@pytest.mark.parametrize("stack", ["Data", "HyperPod"])
def test_the_zone_rule_sees_a_subnet_elsewhere(reference: Assembly, stack: str) -> None:
    import copy

    templates = copy.deepcopy(dict(reference.templates))
    wrong = next(name for name in reference.templates["Cluster"]["Parameters"] if name == "ClusterSubnetId2")
    default = reference.templates["Cluster"]["Parameters"][wrong]["Default"]
    templates[stack]["Parameters"]["HyperpodSubnetId"]["Default"] = default
    moved = Assembly(folder=reference.folder, templates=templates, below=reference.below)
    assert len(zones_of_data_and_nodes(moved)) == 2
