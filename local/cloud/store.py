"""The resources that the local cloud holds itself, and what they share: clients, Kubernetes clusters, fault switches."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from local.cloud import ACCOUNT, REGION, SECRET, accounts
from local.cloud.faults import Faults
from local.state import of_cluster

if TYPE_CHECKING:
    from local.kubernetes.cluster import Clusters

Properties = dict[str, Any]
EKS = "AWS::EKS::Cluster"


@dataclass
class Resource:
    """One resource: its CloudFormation type, Ref value, properties and read-only attributes (dotted names)."""

    type: str
    id: str
    logical_id: str
    stack: str
    properties: Properties
    attributes: Properties
    created: float = field(default_factory=time.time)
    # What the resource made elsewhere and takes with it: network interfaces, ids in other services.
    owned: dict[str, Any] = field(default_factory=dict)
    account: str = field(default_factory=accounts.current)

    @property
    def kind(self) -> str:
        return self.type.removeprefix("AWS::")


class Store:
    """All resources by account, type and Ref value; only those of the current account are seen. Safe from any thread."""

    def __init__(self) -> None:
        self._lock = threading.RLock()
        self._resources: dict[tuple[str, str, str], Resource] = {}

    def add(self, resource: Resource) -> None:
        with self._lock:
            self._resources[resource.account, resource.type, resource.id] = resource

    def get(self, resource_type: str, identifier: str) -> Resource | None:
        with self._lock:
            return self._resources.get((accounts.current(), resource_type, identifier))

    def remove(self, resource_type: str, identifier: str) -> Resource | None:
        with self._lock:
            return self._resources.pop((accounts.current(), resource_type, identifier), None)

    def all(self, resource_type: str | None = None) -> list[Resource]:
        account = accounts.current()
        return [r for r in self.everything() if r.account == account and resource_type in (None, r.type)]

    def everything(self) -> list[Resource]:
        """The resources of all accounts."""
        with self._lock:
            return list(self._resources.values())

    def where(self, resource_type: str, **properties: object) -> Iterator[Resource]:
        """The resources of a type whose properties or attributes have these values."""
        for resource in self.all(resource_type):
            known = {**resource.properties, **resource.attributes}
            if all(known.get(name) == value for name, value in properties.items()):
                yield resource


class Cloud:
    """One local cloud: what the provider, the rules and the service calls work on."""

    def __init__(self, *, port: int, clusters: Clusters | None = None, folder: Path | None = None, node_delay: float = 1.0) -> None:
        self.port = port
        self.folder = folder
        self.store = Store()
        self.faults = Faults.from_environment()
        self.clusters = clusters
        # Seconds until the nodes of a HyperPod cluster join; on AWS it takes 15 to 25 minutes.
        self.node_delay = node_delay
        self._clients: dict[tuple[str, str], Any] = {}
        self._clients_lock = threading.Lock()
        # Training plans by account and name, and what was offered, by its id.
        self.plans: dict[tuple[str, str], Any] = {}
        self.offerings: dict[str, Any] = {}
        # Set by what runs the Kubernetes endpoint: cluster name -> (endpoint URL, certificate authority as PEM).
        self.kubernetes_endpoint: Any = None

    def write_kubeconfig(self, cluster: str, url: str, authority: str) -> None:
        """What `aws eks update-kubeconfig` would write; a file for each cluster, since the toolkit reads a file's current context only."""
        if self.folder is None:
            return
        import base64

        from local.kubernetes import kubeconfig

        data = base64.b64encode(authority.encode()).decode()
        account = accounts.current()
        content = kubeconfig.kubeconfig(cluster, endpoint=url, authority_data=data, region=REGION, account=account)
        kubeconfig.write(self.folder / of_cluster("kubeconfig", cluster), content)

    def remove_kubeconfig(self, cluster: str) -> None:
        path = self.folder / of_cluster("kubeconfig", cluster) if self.folder is not None else None
        if path is not None and path.exists() and f":cluster/{cluster}\n" in path.read_text():
            path.unlink()

    @property
    def endpoint(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    @cached_property
    def _session(self) -> Any:
        import boto3

        return boto3.session.Session(region_name=REGION)

    def account_of(self, cluster: str) -> str:
        """The account of an EKS cluster, whose name is taken once on this machine; the default account where there is none."""
        return next((r.account for r in self.store.everything() if r.type == EKS and r.id == cluster), ACCOUNT)

    def client(self, service: str) -> Any:
        """A boto3 client of this cloud, for the current account. Blocks on the network: never call it on the event loop."""
        key = (accounts.current(), service)
        with self._clients_lock:
            if key not in self._clients:
                from botocore.config import Config

                config = Config(retries={"max_attempts": 1}, connect_timeout=5, read_timeout=60)
                who = {"aws_access_key_id": key[0], "aws_secret_access_key": SECRET}
                self._clients[key] = self._session.client(service, endpoint_url=self.endpoint, config=config, **who)
            return self._clients[key]


def tags(properties: Properties) -> dict[str, str]:
    """Tags of a resource as a mapping, from either form that CloudFormation types use."""
    given = properties.get("Tags") or {}
    if isinstance(given, dict):
        return {str(k): str(v) for k, v in given.items()}
    return {t["Key"]: str(t.get("Value", "")) for t in given if isinstance(t, dict) and "Key" in t}


def arn(service: str, rest: str) -> str:
    return f"arn:aws:{service}:{REGION}:{accounts.current()}:{rest}"
