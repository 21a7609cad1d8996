"""The environment: one YAML file, one frozen typed object. Everything that differs between deployments is in here."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field, StringConstraints

from config.compute import HyperPod, InstanceGroup, Role
from config.model import Name, Part, text
from config.network import Access, Network
from config.platform import Observability, RemoteAccess, Studio
from config.storage import Image, Storage
from config.versions import VERSION_SETS, VersionSet
from config.workloads import RayCluster, Serving, Training

# AWS's own account number for documentation: synthesis needs an account but must not look one up.
DOCUMENTATION_ACCOUNT = "111122223333"
# The account of the local cloud. Nothing with this account ever speaks to anything but a loopback endpoint.
LOCAL_ACCOUNT = "000000000000"

AccountId = Annotated[str, text(r"^[0-9]{12}$", rule="an account has 12 digits", example="'123456789012' in quotes")]
Region = Annotated[str, text(r"^[a-z]{2}(-[a-z]+)+-[0-9]$", rule="this is an AWS region", example="us-west-2")]
EnvironmentName = Annotated[
    str,
    text(
        r"^[a-z]([-a-z0-9]{0,14}[a-z0-9])?$",
        rule="it becomes part of bucket names: 1 to 16 of a-z, 0-9 and `-`, beginning with a letter and not ending with `-`",
        example="production",
    ),
]


class Environment(Part):
    """One deployment of the whole system. Build it with `config.load.load`, which also applies the cross-field rules."""

    name: EnvironmentName
    account: AccountId = DOCUMENTATION_ACCOUNT
    region: Region
    versions: str = "2026.11"
    network: Network
    access: Access = Access()
    instance_groups: Annotated[tuple[InstanceGroup, ...], Field(min_length=1, max_length=20)]
    hyperpod: HyperPod = HyperPod()
    storage: Storage = Storage()
    image: Image = Image()
    ray_cluster: RayCluster = RayCluster()
    training: Training = Training()
    serving: Serving = Serving()
    observability: Observability = Observability()
    remote_access: RemoteAccess = RemoteAccess()
    studio: Studio = Studio()
    tags: dict[
        Annotated[str, StringConstraints(min_length=1, max_length=128)],
        Annotated[str, StringConstraints(max_length=256)],
    ] = Field(default_factory=dict)
    termination_protection: bool = False

    @property
    def version_set(self) -> VersionSet:
        """The version set that `versions` names. Raises KeyError for an environment that was not validated."""
        return VERSION_SETS[self.versions]

    @property
    def local(self) -> bool:
        """Whether this environment is the local cloud's."""
        return self.account == LOCAL_ACCOUNT

    def groups(self, role: Role) -> tuple[InstanceGroup, ...]:
        """Instance groups with this role, in the order of the file."""
        return tuple(group for group in self.instance_groups if group.role == role)

    @property
    def head(self) -> InstanceGroup:
        """The group that carries the Ray head."""
        return self.groups("head")[0]

    @property
    def workers(self) -> InstanceGroup:
        """The group that carries the Ray workers."""
        return self.groups("workers")[0]

    @property
    def training_gpus(self) -> int:
        """GPUs that the RayCluster has in all: SkyRL's world size when everything is colocated."""
        return self.workers.gpus

    @property
    def namespaces(self) -> tuple[Name, ...]:
        """Kubernetes namespaces of the workloads, each once."""
        return tuple(dict.fromkeys((self.ray_cluster.namespace, self.serving.namespace)))
