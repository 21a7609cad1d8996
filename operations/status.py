"""How an environment stands: stacks, nodes, add-ons, Ray, file system, spending.

Read-only, and each part by itself: what does not answer says so, and the rest is shown.
"""

from __future__ import annotations

import json
import os
import shutil
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

from config import names, prices
from config.environment import Environment
from config.names import Stack
from config.problems import Failed, Refused, Unreachable
from operations.aws import Aws, Unanswered

if TYPE_CHECKING:
    from training.kubernetes import Kubectl

# The node label is what HyperPod writes: https://docs.aws.amazon.com/sagemaker/latest/dg/sagemaker-hyperpod-eks-resiliency-node-labels.html
HEALTH_LABEL, GROUP_LABEL = "sagemaker.amazonaws.com/node-health-status", "sagemaker.amazonaws.com/instance-group-name"
EVENTS, WARNINGS = 3, 5
Json = Mapping[str, Any]


@dataclass(frozen=True)
class Part:
    """One part: lines for people, data for programs, or why it is not known."""

    lines: Sequence[str] = ()
    data: Any = None
    unknown: str = ""


@dataclass(frozen=True)
class Overview:
    """All parts by name, in the order in which they are shown. `reached`: whether AWS answered."""

    parts: Mapping[str, Part] = field(default_factory=dict)
    reached: bool = True

    def document(self) -> dict[str, Any]:
        """For programs: each part's data, and what is not known."""
        unknown = {name: part.unknown for name, part in self.parts.items() if part.unknown}
        return {**{name: part.data for name, part in self.parts.items()}, "not_known": unknown}

    def lines(self) -> list[str]:
        """For people."""
        found: list[str] = []
        for name, part in self.parts.items():
            found += part.lines
            if part.unknown:
                found.append(f"{name.replace('_', ' ')}: not known, {part.unknown}")
        return found


def overview(env: Environment, *, aws: Aws, kubectl: Kubectl, runs: Callable[[], Part], now: Callable[[], float] = time.time) -> Overview:
    """Look at everything side by side. `runs` asks Ray, if there is a head that can answer.

    Raises Unreachable if AWS does not answer at all.
    """
    try:
        stacks = _stacks(env, aws)
    except Unanswered as error:
        if error.hopeless:
            raise Unreachable(error.sentence) from None
        stacks = Part(unknown=str(error))
    if not stacks.unknown and not stacks.data:
        return Overview({"stacks": stacks})
    seen = _Kubernetes(kubectl)
    jobs: dict[Stack, dict[str, Callable[[], Part]]] = {
        Stack.HYPERPOD: {"node_groups": lambda: _groups(env, aws, seen, now)},
        Stack.CLUSTER: {"addons": lambda: _addons(env, aws), "cluster": lambda: _cluster(kubectl), "ray": lambda: _ray(env, seen)},
        Stack.DATA: {"file_system": lambda: _file_system(env, aws, now)},
    }
    wanted = {name: look for which, its in jobs.items() if stacks.unknown or which.value in stacks.data for name, look in its.items()}
    with ThreadPoolExecutor(max(1, len(wanted))) as pool:
        begun = {name: pool.submit(_guarded, look) for name, look in wanted.items()}
        cluster = begun["cluster"].result() if "cluster" in begun else Part()
        asked = runs if cluster.data and cluster.data["head_ready"] else Part
        parts = {"stacks": stacks, "runs": _guarded(asked)} | {name: future.result() for name, future in begun.items()}
    order = ("stacks", "node_groups", "addons", "cluster", "ray", "file_system", "runs")
    return Overview({name: parts[name] for name in order if name in parts})


def _guarded(look: Callable[[], Part]) -> Part:
    try:
        return look()
    except (Unanswered, Unreachable, Failed) as error:
        return Part(unknown=str(error).rstrip("."))
    except Refused as error:
        return Part(unknown="; ".join(str(problem).rstrip(".") for problem in error.problems))


def _cluster(kubectl: Kubectl) -> Part:
    """The environment's own RayCluster, and what it waits for."""
    from training import cluster

    state = cluster.state(kubectl)
    return Part([state.sentence(), *(f"  waits for {reason}" for reason in state.waiting_for)], state.document())


def _stacks(env: Environment, aws: Aws) -> Part:
    """The environment's stacks with their status."""
    wanted = {names.stack(env, which): which.value for which in Stack}
    there = {wanted[item["StackName"]]: str(item["StackStatus"]) for item in aws.pages("cloudformation", "list_stacks", "StackSummaries")
             if item["StackName"] in wanted and item["StackStatus"] != "DELETE_COMPLETE"}  # fmt: skip
    if not there:
        return Part([f"environment {env.name} is not deployed in {env.region}; cdk deploy --all -c env={env.name}"], {})
    ordered = {which.value: there[which.value] for which in Stack if which.value in there}
    odd = [f"{name} {status}" for name, status in ordered.items() if status not in ("CREATE_COMPLETE", "UPDATE_COMPLETE")]
    missing = [which.value for which in expected(env) if which.value not in ordered]
    lines = [f"stacks        {len(ordered)}: " + (", ".join(odd) if odd else "all complete")]
    lines += [f"  not there: {', '.join(missing)}; cdk deploy --all -c env={env.name}"] if missing else []
    failed = [which for which in Stack if ordered.get(which.value, "").endswith(("FAILED", "ROLLBACK_COMPLETE"))]
    lines += [f"  {which.value}: {why}" for which in failed if (why := _reason(aws, names.stack(env, which)))]
    return Part(lines, ordered)


def expected(env: Environment) -> list[Stack]:
    """The stacks that this environment has once it is deployed (stacks/wiring.py)."""
    watched = (Stack.TELEMETRY, Stack.OBSERVABILITY)
    return [
        which for which in Stack
        if (which not in watched or env.observability.enabled) and (which is not Stack.STUDIO or env.studio.enabled)
    ]  # fmt: skip


def _reason(aws: Aws, stack: str) -> str:
    """What failed first in the stack's last operation; what fails after it is mostly cancelled because of it."""
    events, unsaid = _perhaps(lambda: _last_operation(aws.pages("cloudformation", "describe_stack_events", "StackEvents", StackName=stack)))
    if unsaid:
        return f"why is not known: {unsaid}"
    said = [
        f"{event['LogicalResourceId']} {event['ResourceStatus']}: {' '.join(event['ResourceStatusReason'].split())}"
        for event in reversed(events) if str(event["ResourceStatus"]).endswith("FAILED") and event.get("ResourceStatusReason")
    ]  # fmt: skip
    return said[0] if said else ""


def _last_operation(newest_first: Iterable[Json]) -> list[Json]:
    """Events back to the one that began the operation: the stack's own, before whatever it rolled back to."""
    found: list[Json] = []
    for event in newest_first:
        found.append(event)
        own = event.get("PhysicalResourceId") == event.get("StackId")
        if own and event["ResourceStatus"] in ("CREATE_IN_PROGRESS", "UPDATE_IN_PROGRESS", "DELETE_IN_PROGRESS", "REVIEW_IN_PROGRESS"):
            break
    return found


def _groups(env: Environment, aws: Aws, seen: _Kubernetes, now: Callable[[], float]) -> Part:
    """Instance groups as SageMaker wants them, has them, and as Kubernetes sees their nodes; and what the nodes have cost."""
    cluster = names.hyperpod_cluster(env)
    described = aws.call("sagemaker", "describe_cluster", ClusterName=cluster)
    nodes = list(aws.pages("sagemaker", "list_cluster_nodes", "ClusterNodeSummaries", ClusterName=cluster))
    # Sorted by time here, since the call has no promise about it.
    events, unsaid = _perhaps(
        lambda: sorted(
            aws.pages("sagemaker", "list_cluster_events", "Events", ClusterName=cluster), key=lambda e: str(e.get("EventTime", ""))
        )
    )
    try:
        ready, sick = _kubernetes_nodes(seen.nodes_and_events)
        unseen = ""
    except (Unreachable, Failed, Refused) as error:
        ready, sick, unseen = Counter(), {}, f"; Kubernetes does not say which are Ready: {error}".rstrip(".")
    groups = []
    for group in described.get("InstanceGroups", ()):
        name = str(group["InstanceGroupName"])
        states = Counter(str(node["InstanceStatus"]["Status"]) for node in nodes if node["InstanceGroupName"] == name)
        groups.append({
            "name": name, "instance_type": group["InstanceType"], "target": int(group.get("TargetCount", 0)),
            "current": int(group.get("CurrentCount", 0)), "ready": None if unseen else ready[name], "unhealthy": sick.get(name, []),
            "states": dict(states), "events": [_event(e) for e in events if e.get("InstanceGroupName") == name][-EVENTS:],
        })  # fmt: skip
    spend = _spend(nodes, now())
    lines = [f"HyperPod      {cluster} is {described['ClusterStatus']}{unseen}"]
    for group in groups:
        lines.append(_group_line(group))
        if group["current"] < group["target"] or group["unhealthy"]:
            lines += [f"  {event['time']} {event['description']}" for event in group["events"]]
    lines += [f"  events are not known: {unsaid}"] if unsaid else []
    return Part([*lines, _spend_line(spend)], {"status": described["ClusterStatus"], "groups": groups, "spend": spend})


def _perhaps(ask: Callable[[], list[Any]]) -> tuple[list[Any], str]:
    """What is asked for, or nothing and why it is not known: the rest of a part is shown without it."""
    try:
        return ask(), ""
    except Unanswered as error:
        return [], str(error).rstrip(".")


def _group_line(group: Json) -> str:
    ready = "" if group["ready"] is None else f", {group['ready']} Ready"
    sick = f", unhealthy: {', '.join(group['unhealthy'])}" if group["unhealthy"] else ""
    other = ", ".join(f"{count} {state}" for state, count in group["states"].items() if state != "Running")
    return (
        f"  {group['name']:<11} {group['instance_type']}: {group['current']} of {group['target']} instances{ready}"
        + (f" ({other})" if other else "") + sick
    )  # fmt: skip


def _event(event: Json) -> dict[str, str]:
    when = event.get("EventTime")
    shown = when.astimezone(UTC).strftime("%Y-%m-%d %H:%M:%S") if isinstance(when, datetime) else str(when or "")
    return {"time": shown, "level": str(event.get("EventLevel", "")), "description": " ".join(str(event.get("Description", "")).split())}


def _kubernetes_nodes(objects: Sequence[Json]) -> tuple[Counter[str], dict[str, list[str]]]:
    """Ready nodes for each group, and the names of those that HyperPod's health agent took out or that are not Ready."""
    ready: Counter[str] = Counter()
    sick: dict[str, list[str]] = {}
    for node in (item for item in objects if item["kind"] == "Node"):
        labels, name = node["metadata"].get("labels", {}), node["metadata"]["name"]
        group = labels.get(GROUP_LABEL, "")
        up = any(c["type"] == "Ready" and c["status"] == "True" for c in node.get("status", {}).get("conditions", ()))
        ready[group] += up
        health = labels.get(HEALTH_LABEL, "Schedulable")
        if not up or health != "Schedulable":
            sick.setdefault(group, []).append(f"{name} ({health if health != 'Schedulable' else 'NotReady'})")
    return ready, sick


class _Kubernetes:
    """What several parts look at, asked for once: a start of kubectl costs more than its answer."""

    def __init__(self, kubectl: Kubectl) -> None:
        self._kubectl, self._lock = kubectl, threading.Lock()
        self._known: dict[str, list[dict[str, Any]]] = {}

    @property
    def nodes_and_events(self) -> list[dict[str, Any]]:
        return self._items("nodes,events")

    @property
    def ray(self) -> list[dict[str, Any]]:
        return self._items("rayclusters.ray.io,rayservices.ray.io")

    def _items(self, kinds: str) -> list[dict[str, Any]]:
        """All objects of these kinds; none where the kinds are not there (yet). Raises Unreachable, Rejected."""
        from training.kubernetes import Rejected

        with self._lock:
            if kinds not in self._known:
                try:
                    text = self._kubectl.run("get", kinds, "--all-namespaces", "--output", "json")
                    self._known[kinds] = json.loads(text)["items"]
                except Rejected as error:
                    if "resource type" not in str(error) and "no matches for kind" not in str(error):
                        raise
                    self._known[kinds] = []
            return self._known[kinds]


def _spend(nodes: Sequence[Json], now: float) -> dict[str, Any]:
    """USD of the nodes that are there now, each since it was launched; nodes that were replaced are not in it."""
    total, hourly, unpriced, since = 0.0, 0.0, set(), []
    for node in nodes:
        price, launched = prices.INSTANCES.get(node["InstanceType"]), node.get("LaunchTime")
        if price is None:
            unpriced.add(node["InstanceType"])
            continue
        hourly += price.usd_per_hour
        if isinstance(launched, datetime):
            since.append(launched.timestamp())
            total += price.usd_per_hour * max(0.0, now - launched.timestamp()) / 3600
    first = datetime.fromtimestamp(min(since), UTC).strftime("%Y-%m-%d %H:%M UTC") if since else None
    return {"usd": round(total, 2), "usd_per_hour": round(hourly, 2), "nodes": len(nodes), "since": first, "unpriced": sorted(unpriced)}


def _spend_line(spend: Json) -> str:
    if not spend["nodes"]:
        return "spent         nothing on nodes: there are none"
    lacking = f", without {', '.join(spend['unpriced'])}, whose price is not known" if spend["unpriced"] else ""
    return (
        f"spent         about {spend['usd']:.2f} USD on the {spend['nodes']} nodes since the first joined ({spend['since'] or 'unknown'}), "
        f"{spend['usd_per_hour']:.2f} USD an hour by the price table of {prices.TABLE_DATE}{lacking}"
    )


def _addons(env: Environment, aws: Aws) -> Part:
    """Add-ons of the EKS cluster: version, state, what is wrong with them."""
    cluster = names.eks_cluster(env)
    known = list(aws.pages("eks", "list_addons", "addons", clusterName=cluster))
    with ThreadPoolExecutor(4) as pool:
        answers = list(pool.map(lambda name: _perhaps(lambda: [_addon(aws, cluster, name)]), known))
    described = [
        found[0] if found else {"addonName": name, "status": "not known", "health": {"issues": [{"code": "unanswered", "message": unsaid}]}}
        for name, (found, unsaid) in zip(known, answers, strict=True)
    ]
    addons = [
        {"name": a["addonName"], "version": a.get("addonVersion", ""), "status": a.get("status", ""),
         "issues": [f"{i.get('code')}: {i.get('message')}" for i in a.get("health", {}).get("issues", ())]}
        for a in described
    ]  # fmt: skip
    wrong = [a for a in addons if a["status"] != "ACTIVE" or a["issues"]]
    lines = [f"add-ons       {len(addons)}: " + ("all active" if not wrong else f"{len(wrong)} not well")]
    lines += [
        f"  {' '.join(filter(None, (a['name'], a['version'])))} is {a['status']}" + "".join(f"; {issue}" for issue in a["issues"])
        for a in wrong
    ]
    return Part(lines, addons)


def _addon(aws: Aws, cluster: str, name: str) -> Any:
    return aws.call("eks", "describe_addon", clusterName=cluster, addonName=name)["addon"]


def _ray(env: Environment, seen: _Kubernetes) -> Part:
    """Every RayCluster and RayService of the environment's namespaces, with the newest warnings about them and their pods."""
    events = [item for item in seen.nodes_and_events if item["kind"] == "Event"]
    found, lines = [], []
    for item in seen.ray:
        status, kind, metadata = item.get("status") or {}, str(item["kind"]), item["metadata"]
        if metadata.get("namespace") not in env.namespaces:
            continue
        state = str(status.get("state" if kind == "RayCluster" else "serviceStatus") or "pending")
        warnings = _warnings(events, metadata)
        found.append({"kind": kind, "name": metadata["name"], "namespace": metadata["namespace"], "state": state, "warnings": warnings})
        if warnings or (kind, metadata["name"]) != ("RayCluster", env.ray_cluster.name):  # that one has its line already
            lines.append(f"{kind} {metadata['namespace']}/{metadata['name']} is {state}" + (", and warned:" if warnings else ""))
            lines += [f"  {warning}" for warning in warnings]
    return Part(lines, found)


def _warnings(events: Sequence[Json], metadata: Json) -> list[str]:
    """The newest warnings about an object or what is named after it (its pods, its services), each once: FailedMount, …"""
    name, namespace = metadata["name"], metadata.get("namespace")
    mine = [
        e for e in events
        if e.get("type") == "Warning" and e.get("involvedObject", {}).get("namespace") == namespace
        and (e["involvedObject"].get("name") == name or str(e["involvedObject"].get("name", "")).startswith(f"{name}-"))
    ]  # fmt: skip
    mine.sort(key=lambda e: str(e.get("lastTimestamp") or e.get("eventTime") or ""))
    said = [f"{e['involvedObject']['name']}: {e.get('reason')}, {' '.join(str(e.get('message')).split())}" for e in mine]
    return list(dict.fromkeys(said))[-WARNINGS:]


def _file_system(env: Environment, aws: Aws, now: Callable[[], float]) -> Part:
    """Capacity, and how full: where /shared is mounted on this machine by looking, else by the metric that FSx writes."""
    wanted = names.file_system(env)
    found = [item for item in aws.pages("fsx", "describe_file_systems", "FileSystems")
             if any(tag["Key"] == "Name" and tag["Value"] == wanted for tag in item.get("Tags", ()))]  # fmt: skip
    if not found:
        return Part([f"file system   none is named {wanted}"], None)
    # After a restore with `storage.removal: retain` the one before it is still there, under the same name.
    found.sort(key=lambda each: str(each.get("CreationTime", "")), reverse=True)
    item = found[0]
    capacity = int(item["StorageCapacity"])
    used, source = _used_percent(env, aws, str(item["FileSystemId"]), capacity, now())
    use = f"{used:.0f} % used ({source})" if used is not None else f"use is not known: {source}"
    data = {
        "id": item["FileSystemId"],
        "lifecycle": item.get("Lifecycle"),
        "capacity_gib": capacity,
        "used_percent": used,
        "source": source,
    }
    lines = [f"file system   {item['FileSystemId']} is {str(item.get('Lifecycle')).lower()}, {capacity} GiB, {use}"]
    lines += [f"  an older one of this name is there, too, and costs: {each['FileSystemId']}; hyperpod-rl leaks" for each in found[1:]]
    return Part(lines, data)


def _used_percent(env: Environment, aws: Aws, identifier: str, capacity: int, now: float) -> tuple[float | None, str]:
    if shared := os.environ.get("HYPERPOD_RL_SHARED"):
        try:
            space = shutil.disk_usage(shared)
            return round(100 * space.used / space.total, 1), "the disk of $HYPERPOD_RL_SHARED"
        except OSError:
            pass
    # https://docs.aws.amazon.com/fsx/latest/LustreGuide/fs-metrics.html: bytes that are free, summed over the storage targets.
    end = datetime.fromtimestamp(now, UTC)
    points, unsaid = _perhaps(
        lambda: aws.call(
            "cloudwatch", "get_metric_statistics", Namespace="AWS/FSx", MetricName="FreeDataStorageCapacity", Statistics=["Sum"], Period=60,
            Dimensions=[{"Name": "FileSystemId", "Value": identifier}], StartTime=end - timedelta(minutes=15), EndTime=end,
        ).get("Datapoints", [])
    )  # fmt: skip
    points.sort(key=lambda point: str(point["Timestamp"]))
    if unsaid:
        return None, unsaid
    if not points:
        return None, "FSx has written no metric in the last 15 minutes"
    free = float(points[-1]["Sum"])
    return round(100 * (1 - free / (capacity * (1 << 30))), 1), "CloudWatch"
