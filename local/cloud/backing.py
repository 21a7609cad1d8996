"""What a resource sets off elsewhere: the record in the service that ministack has, network interfaces, nodes, Kubernetes.

Where ministack has a service's API but no CloudFormation type for it, the resource is made through that API, as AWS's
own resource handlers do, so that `aws ec2 describe-addresses` and the stack see the same thing.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from local.cloud import nodes
from local.cloud.services import grafana_http
from local.cloud.store import Cloud, Resource, arn, tags
from local.kubernetes import addons

Make = Callable[[Cloud, Resource], None]
Change = Callable[[Cloud, Resource, dict[str, Any]], None]


def _nothing(cloud: Cloud, resource: Resource) -> None: ...


def _unchanged(cloud: Cloud, resource: Resource, before: dict[str, Any]) -> None: ...


@dataclass(frozen=True)
class Backing:
    create: Make = _nothing
    update: Change = _unchanged
    delete: Make = _nothing


def create(cloud: Cloud, resource: Resource) -> None:
    _BACKINGS.get(resource.type, Backing()).create(cloud, resource)


def update(cloud: Cloud, resource: Resource, before: dict[str, Any]) -> None:
    _BACKINGS.get(resource.type, Backing()).update(cloud, resource, before)


def delete(cloud: Cloud, resource: Resource) -> None:
    _BACKINGS.get(resource.type, Backing()).delete(cloud, resource)
    _remove_interfaces(cloud, resource)
    group = resource.owned.pop("security_group", None)
    if group:
        _ignore_gone(cloud.client("ec2").delete_security_group, GroupId=group)


def abandon(cloud: Cloud, resource: Resource) -> None:
    """A create that failed halfway leaves no interfaces behind."""
    _remove_interfaces(cloud, resource)


def camel(value: Any) -> Any:
    """CloudFormation's names in the spelling of a REST-JSON API (`ServiceAccount` -> `serviceAccount`)."""
    if isinstance(value, dict):
        return {k[:1].lower() + k[1:]: camel(v) for k, v in value.items()}
    return [camel(item) for item in value] if isinstance(value, list) else value


def _gone(error: Exception) -> bool:
    code = str(getattr(error, "response", {}).get("Error", {}).get("Code", ""))
    return "NotFound" in code or "NoSuch" in code


def _ignore_gone(call: Callable[..., Any], **arguments: Any) -> None:
    try:
        call(**arguments)
    except Exception as error:
        if not _gone(error):
            raise


# --- network interfaces ---


def add_interface(cloud: Cloud, resource: Resource, subnet: str, groups: list[str], description: str) -> str:
    """An interface that a service puts into a subnet; subnet and groups cannot be deleted while it is there."""
    made = cloud.client("ec2").create_network_interface(SubnetId=subnet, Groups=groups, Description=description)
    identifier = str(made["NetworkInterface"]["NetworkInterfaceId"])
    resource.owned.setdefault("interfaces", []).append(identifier)
    return identifier


def _remove_interfaces(cloud: Cloud, resource: Resource) -> None:
    for interface in resource.owned.pop("interfaces", []):
        _ignore_gone(cloud.client("ec2").delete_network_interface, NetworkInterfaceId=interface)


def add_cluster_security_group(cloud: Cloud, resource: Resource, subnets: list[str]) -> dict[str, str]:
    """The security group that EKS makes for a cluster and deletes with it; returns it with the VPC, as EKS spells them."""
    ec2 = cloud.client("ec2")
    vpc = ec2.describe_subnets(SubnetIds=subnets)["Subnets"][0]["VpcId"]
    made = ec2.create_security_group(GroupName=f"eks-cluster-sg-{resource.id}", Description="EKS created security group", VpcId=vpc)
    resource.owned["security_group"] = made["GroupId"]
    return {"vpcId": vpc, "clusterSecurityGroupId": made["GroupId"]}


# --- EC2 ---


def _eip(cloud: Cloud, resource: Resource) -> None:
    made = cloud.client("ec2").allocate_address(Domain="vpc", **_tagged("elastic-ip", resource))
    resource.attributes.update(AllocationId=made["AllocationId"], PublicIp=made["PublicIp"])


def _eip_gone(cloud: Cloud, resource: Resource) -> None:
    _ignore_gone(cloud.client("ec2").release_address, AllocationId=resource.attributes["AllocationId"])


def _tagged(kind: str, resource: Resource) -> dict[str, Any]:
    listed = [{"Key": k, "Value": v} for k, v in tags(resource.properties).items()]
    return {"TagSpecifications": [{"ResourceType": kind, "Tags": listed}]} if listed else {}


def _nat(cloud: Cloud, resource: Resource) -> None:
    given = {k: resource.properties[k] for k in ("SubnetId", "AllocationId", "ConnectivityType") if k in resource.properties}
    made = cloud.client("ec2").create_nat_gateway(**given, **_tagged("natgateway", resource))["NatGateway"]
    resource.attributes["NatGatewayId"] = made["NatGatewayId"]
    if "SubnetId" in given:
        resource.attributes["EniId"] = add_interface(
            cloud, resource, given["SubnetId"], [], f"Interface for NAT Gateway {made['NatGatewayId']}"
        )


def _nat_gone(cloud: Cloud, resource: Resource) -> None:
    _ignore_gone(cloud.client("ec2").delete_nat_gateway, NatGatewayId=resource.attributes["NatGatewayId"])


def _flow_log(cloud: Cloud, resource: Resource) -> None:
    p = resource.properties
    names = ("TrafficType", "LogDestinationType", "LogDestination", "LogGroupName", "DeliverLogsPermissionArn", "LogFormat")
    made = cloud.client("ec2").create_flow_logs(
        ResourceIds=[p["ResourceId"]], ResourceType=p["ResourceType"], **{k: p[k] for k in names if k in p}
    )
    if made.get("FlowLogIds"):
        resource.attributes["Id"] = made["FlowLogIds"][0]


def _flow_log_gone(cloud: Cloud, resource: Resource) -> None:
    _ignore_gone(cloud.client("ec2").delete_flow_logs, FlowLogIds=[resource.attributes["Id"]])


def _permission(resource: Resource) -> dict[str, Any]:
    p = resource.properties
    made: dict[str, Any] = {"IpProtocol": str(p["IpProtocol"])}
    for port in ("FromPort", "ToPort"):
        if port in p:
            made[port] = int(p[port])
    described = {"Description": p["Description"]} if "Description" in p else {}
    peer = p.get("SourceSecurityGroupId") or p.get("DestinationSecurityGroupId")
    prefix = p.get("SourcePrefixListId") or p.get("DestinationPrefixListId")
    if p.get("CidrIp"):
        made["IpRanges"] = [{"CidrIp": p["CidrIp"], **described}]
    if p.get("CidrIpv6"):
        made["Ipv6Ranges"] = [{"CidrIpv6": p["CidrIpv6"], **described}]
    if peer:
        made["UserIdGroupPairs"] = [{"GroupId": peer, **described}]
    if prefix:
        made["PrefixListIds"] = [{"PrefixListId": prefix, **described}]
    return made


def _rule(direction: str) -> Backing:
    def make(cloud: Cloud, resource: Resource) -> None:
        call = getattr(cloud.client("ec2"), f"authorize_security_group_{direction}")
        call(GroupId=resource.properties["GroupId"], IpPermissions=[_permission(resource)])
        resource.attributes["Id"] = f"sgr-{resource.attributes['Id'].rsplit('-', 1)[-1]}"

    def gone(cloud: Cloud, resource: Resource) -> None:
        call = getattr(cloud.client("ec2"), f"revoke_security_group_{direction}")
        _ignore_gone(call, GroupId=resource.properties["GroupId"], IpPermissions=[_permission(resource)])

    return Backing(create=make, delete=gone)


# --- EKS: the objects below a cluster ---


def _addon(cloud: Cloud, resource: Resource) -> None:
    p = resource.properties
    cloud.client("eks").create_addon(
        clusterName=p["ClusterName"],
        addonName=p["AddonName"],
        **{
            k: v
            for k, v in camel(p).items()
            if k in ("addonVersion", "serviceAccountRoleArn", "resolveConflicts", "configurationValues", "podIdentityAssociations")
        },
        tags=tags(p),
    )
    resource.attributes["Arn"] = arn("eks", f"addon/{p['ClusterName']}/{p['AddonName']}/{resource.attributes['Arn'][-12:]}")
    cluster = cloud.clusters.get(p["ClusterName"]) if cloud.clusters is not None else None
    if cluster is not None:
        addons.install(cluster, p["AddonName"])


def _addon_changed(cloud: Cloud, resource: Resource, before: dict[str, Any]) -> None:
    p = resource.properties
    cloud.client("eks").update_addon(
        clusterName=p["ClusterName"],
        addonName=p["AddonName"],
        **{
            k: v
            for k, v in camel(p).items()
            if k in ("addonVersion", "serviceAccountRoleArn", "resolveConflicts", "configurationValues", "podIdentityAssociations")
        },
    )


def _addon_gone(cloud: Cloud, resource: Resource) -> None:
    p = resource.properties
    _ignore_gone(cloud.client("eks").delete_addon, clusterName=p["ClusterName"], addonName=p["AddonName"])
    cluster = cloud.clusters.get(p["ClusterName"]) if cloud.clusters is not None else None
    if cluster is not None:
        addons.remove(cluster, p["AddonName"])


def _access_entry(cloud: Cloud, resource: Resource) -> None:
    p, eks = resource.properties, cloud.client("eks")
    made = eks.create_access_entry(
        clusterName=p["ClusterName"],
        principalArn=p["PrincipalArn"],
        **{k: v for k, v in camel(p).items() if k in ("kubernetesGroups", "username", "type")},
        tags=tags(p),
    )
    resource.attributes["AccessEntryArn"] = made["accessEntry"]["accessEntryArn"]
    _associate(cloud, resource, p.get("AccessPolicies", []))


def _associate(cloud: Cloud, resource: Resource, policies: list[dict[str, Any]]) -> None:
    for policy in policies:
        cloud.client("eks").associate_access_policy(
            clusterName=resource.properties["ClusterName"],
            principalArn=resource.properties["PrincipalArn"],
            policyArn=policy["PolicyArn"],
            accessScope=camel(policy["AccessScope"]),
        )


def _access_entry_changed(cloud: Cloud, resource: Resource, before: dict[str, Any]) -> None:
    p, eks = resource.properties, cloud.client("eks")
    who = {"clusterName": p["ClusterName"], "principalArn": p["PrincipalArn"]}
    eks.update_access_entry(**who, kubernetesGroups=p.get("KubernetesGroups", []))
    kept = {policy["PolicyArn"] for policy in p.get("AccessPolicies", [])}
    for policy in before.get("AccessPolicies", []):
        if policy["PolicyArn"] not in kept:
            _ignore_gone(eks.disassociate_access_policy, **who, policyArn=policy["PolicyArn"])
    _associate(cloud, resource, p.get("AccessPolicies", []))


def _access_entry_gone(cloud: Cloud, resource: Resource) -> None:
    p = resource.properties
    _ignore_gone(cloud.client("eks").delete_access_entry, clusterName=p["ClusterName"], principalArn=p["PrincipalArn"])


def _pod_identity(cloud: Cloud, resource: Resource) -> None:
    p = resource.properties
    names = ("namespace", "serviceAccount", "roleArn", "disableSessionTags", "targetRoleArn", "policy")
    made = cloud.client("eks").create_pod_identity_association(
        clusterName=p["ClusterName"], **{k: v for k, v in camel(p).items() if k in names}, tags=tags(p)
    )["association"]
    resource.attributes.update(
        AssociationArn=made["associationArn"], AssociationId=made["associationId"], ExternalId=made.get("externalId", "")
    )


def _pod_identity_changed(cloud: Cloud, resource: Resource, before: dict[str, Any]) -> None:
    p = resource.properties
    cloud.client("eks").update_pod_identity_association(
        clusterName=p["ClusterName"], associationId=resource.attributes["AssociationId"], roleArn=p["RoleArn"]
    )


def _pod_identity_gone(cloud: Cloud, resource: Resource) -> None:
    _ignore_gone(
        cloud.client("eks").delete_pod_identity_association,
        clusterName=resource.properties["ClusterName"],
        associationId=resource.attributes["AssociationId"],
    )


# --- FSx, SageMaker, Budgets ---


def _file_system(cloud: Cloud, resource: Resource) -> None:
    for subnet in resource.properties.get("SubnetIds", []):
        groups = list(resource.properties.get("SecurityGroupIds", []))
        add_interface(cloud, resource, subnet, groups, f"Created By Amazon FSx for {resource.attributes['Id']}")


def _hyperpod(cloud: Cloud, resource: Resource) -> None:
    resource.owned["cluster_id"] = resource.attributes["ClusterArn"].rsplit("/", 1)[-1]
    resource.attributes["CreationTime"] = str(resource.created)
    nodes.schedule(cloud, resource)


def _hyperpod_changed(cloud: Cloud, resource: Resource, before: dict[str, Any]) -> None:
    nodes.schedule(cloud, resource)


def _hyperpod_gone(cloud: Cloud, resource: Resource) -> None:
    nodes.leave(cloud, resource)


def _domain(cloud: Cloud, resource: Resource) -> None:
    for subnet in resource.properties.get("SubnetIds", []):
        add_interface(cloud, resource, subnet, [], f"Created by SageMaker for {resource.attributes['DomainId']}")


def _grafana(cloud: Cloud, resource: Resource) -> None:
    # A host name on AWS; here it names the scheme too, since no certificate covers it.
    resource.attributes["Endpoint"] = grafana_http.endpoint(cloud, resource.attributes["Id"])


def _budget(cloud: Cloud, resource: Resource) -> None:
    budget = dict(resource.properties["Budget"])
    budget.setdefault("BudgetName", resource.attributes["Id"])
    resource.owned["budget"] = budget["BudgetName"]
    limit = budget.get("BudgetLimit")
    if limit:
        budget["BudgetLimit"] = {**limit, "Amount": str(limit["Amount"])}
    shown = {k: v for k, v in budget.items() if k in ("BudgetName", "BudgetType", "TimeUnit", "BudgetLimit")}
    cloud.client("budgets").create_budget(AccountId=resource.account, Budget=shown)


def _budget_gone(cloud: Cloud, resource: Resource) -> None:
    _ignore_gone(cloud.client("budgets").delete_budget, AccountId=resource.account, BudgetName=resource.owned["budget"])


_BACKINGS = {
    "AWS::EC2::EIP": Backing(_eip, _unchanged, _eip_gone),
    "AWS::EC2::NatGateway": Backing(_nat, _unchanged, _nat_gone),
    "AWS::EC2::FlowLog": Backing(_flow_log, _unchanged, _flow_log_gone),
    "AWS::EC2::SecurityGroupIngress": _rule("ingress"),
    "AWS::EC2::SecurityGroupEgress": _rule("egress"),
    "AWS::EKS::Addon": Backing(_addon, _addon_changed, _addon_gone),
    "AWS::EKS::AccessEntry": Backing(_access_entry, _access_entry_changed, _access_entry_gone),
    "AWS::EKS::PodIdentityAssociation": Backing(_pod_identity, _pod_identity_changed, _pod_identity_gone),
    "AWS::FSx::FileSystem": Backing(_file_system),
    "AWS::SageMaker::Cluster": Backing(_hyperpod, _hyperpod_changed, _hyperpod_gone),
    "AWS::SageMaker::Domain": Backing(_domain),
    "AWS::Grafana::Workspace": Backing(_grafana),
    "AWS::Budgets::Budget": Backing(_budget, _unchanged, _budget_gone),
}
