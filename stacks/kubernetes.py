"""The cluster as the stacks above it see it: by its fixed name, and through the kubectl provider that the Cluster stack owns.

Objects, charts and access entries belong to the stack that needs them, never to the cluster (`cluster.add_*`): stack order alone then
keeps the handler's network and access alive until they are deleted (https://github.com/aws/aws-cdk/issues/34897).
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from aws_cdk import Duration
from aws_cdk import aws_eks_v2 as eks
from constructs import IDependable

from config import names
from stacks.charts import Chart
from stacks.stack import EnvironmentStack, Shared

# Helm's own limit is Lambda's 15 minutes; a chart that is not up in ten has a reason that more waiting does not mend.
CHART_MINUTES = 10


def existing_cluster(stack: EnvironmentStack) -> eks.ICluster:
    """The environment's EKS cluster, for objects that this stack owns."""
    return eks.Cluster.from_cluster_attributes(
        stack,
        "Cluster",
        cluster_name=names.eks_cluster(stack.settings),
        kubectl_provider=eks.KubectlProvider.from_kubectl_provider_attributes(
            stack,
            "Kubectl",
            service_token=stack.read(Shared.KUBECTL_SERVICE),
        ),
    )


def manifest(
    stack: EnvironmentStack,
    construct_id: str,
    *,
    cluster: eks.ICluster,
    objects: Sequence[Mapping[str, Any]],
    after: Sequence[IDependable] = (),
) -> eks.KubernetesManifest:
    """Objects that are created together, after what they need, and deleted before it."""
    made = eks.KubernetesManifest(stack, construct_id, cluster=cluster, manifest=list(objects), overwrite=True)
    made.node.add_dependency(*after)
    return made


def chart(
    stack: EnvironmentStack,
    construct_id: str,
    *,
    cluster: eks.ICluster,
    source: Chart,
    release: str,
    namespace: str,
    values: Mapping[str, Any],
    wait: bool,
    after: Sequence[IDependable] = (),
) -> eks.HelmChart:
    """A Helm release: from this account's ECR where the chart is mirrored. `wait` only where nodes are there to run its pods."""
    mirror = source.revision is not None or stack.settings.network.egress == "closed"
    made = eks.HelmChart(
        stack,
        construct_id,
        cluster=cluster,
        chart=source.name,
        repository=source.mirror(stack.settings) if mirror else source.origin,
        version=source.version,
        release=release,
        namespace=namespace,
        create_namespace=namespace != "kube-system",
        values=values,
        wait=wait,
        skip_crds=False,
        timeout=Duration.minutes(CHART_MINUTES) if wait else None,
    )
    if after:
        made.node.add_dependency(*after)
    return made


def addon(
    stack: EnvironmentStack,
    construct_id: str,
    name: str,
    *,
    configuration: Mapping[str, Any] | None = None,
    service_account_roles: Mapping[str, str] | None = None,
    tags: Mapping[str, str] | None = None,
) -> eks.CfnAddon:
    """An EKS add-on at its pinned version. Pod Identity associations that the add-on owns exist before its pods do."""
    return eks.CfnAddon(
        stack,
        construct_id,
        addon_name=name,
        addon_version=stack.settings.version_set.platform.addons[name],
        cluster_name=names.eks_cluster(stack.settings),
        configuration_values=json.dumps(configuration, sort_keys=True, separators=(",", ":")) if configuration else None,
        pod_identity_associations=[{"serviceAccount": account, "roleArn": arn} for account, arn in (service_account_roles or {}).items()]
        or None,
        preserve_on_delete=False,
        resolve_conflicts="OVERWRITE",
        tags=[{"key": key, "value": value} for key, value in (tags or {}).items()] or None,
    )


def access(
    stack: EnvironmentStack,
    construct_id: str,
    *,
    principal: str,
    policies: Sequence[tuple[str, Sequence[str]]] = (),
    groups: Sequence[str] = (),
) -> eks.CfnAccessEntry:
    """An access entry. `policies` pairs a cluster access policy with the namespaces it holds in; no namespace is the whole cluster."""
    return eks.CfnAccessEntry(
        stack,
        construct_id,
        cluster_name=names.eks_cluster(stack.settings),
        principal_arn=principal,
        kubernetes_groups=list(groups) or None,
        access_policies=[
            {
                "policyArn": f"arn:{stack.partition}:eks::aws:cluster-access-policy/{policy}",
                "accessScope": {"type": "namespace", "namespaces": list(namespaces)} if namespaces else {"type": "cluster"},
            }
            for policy, namespaces in policies
        ]
        or None,
    )
