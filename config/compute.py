"""Instance groups of the HyperPod cluster."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from config.instances import INSTANCES, Instance
from config.model import Count, Name, Part, Positive, text

InstanceType = Annotated[
    str,
    text(r"^ml\.[a-z0-9-]+\.[a-z0-9-]+$", rule="HyperPod's instance types begin with `ml.`", example="ml.g7e.12xlarge"),
]
TrainingPlanArn = Annotated[
    str,
    text(
        r"^arn:aws[a-z-]*:sagemaker:[a-z0-9-]+:[0-9]{12}:training-plan/.+$",
        rule="this is the ARN of a SageMaker training plan",
        example="arn:aws:sagemaker:us-west-2:111122223333:training-plan/p-1",
    ),
]
Role = Literal["system", "head", "workers", "serving", "other"]
DeepHealthCheck = Literal["InstanceStress", "InstanceConnectivity", "MultiNodeTrainingValidation"]


class Figures(Part):
    """Capacity of a type that HyperPod allows but the instance table lacks; its source is the reader's to check."""

    vcpus: Positive
    memory_gib: Positive
    gpus: Count = 0
    gpu_memory_gb: Count = 0
    gpu: str = ""
    efa_interfaces: Count = 0
    max_pods: Positive = 14
    source: str


class Taint(Part):
    """A Kubernetes taint that HyperPod puts on the nodes of a group."""

    key: str
    value: str = ""
    effect: Literal["NoSchedule", "PreferNoSchedule", "NoExecute"] = "NoSchedule"


class InstanceGroup(Part):
    """Nodes of one type. `role` says what runs there; `count: 0` keeps the group and stops the spending."""

    name: Name
    role: Role
    instance_type: InstanceType
    count: Count
    volume_gib: Annotated[int, Field(ge=100, le=16384)] = 500
    threads_per_core: Literal[1, 2] | None = None
    deep_health_checks: tuple[DeepHealthCheck, ...] = ()
    labels: dict[str, str] = Field(default_factory=dict)
    taints: tuple[Taint, ...] = ()
    training_plan_arn: TrainingPlanArn | None = None
    capacity: Literal["on-demand", "spot"] = "on-demand"
    figures: Figures | None = None

    @property
    def instance(self) -> Instance:
        """Capacity of one node: from the table, else from the figures in the environment.

        Raises KeyError if the environment was not validated and the type is unknown.
        """
        if self.figures is None:
            return INSTANCES[self.instance_type]
        return Instance(name=self.instance_type, certainty="given", **self.figures.model_dump())

    @property
    def gpus(self) -> int:
        """GPUs of the whole group."""
        return self.instance.gpus * self.count


class HyperPod(Part):
    """Settings of the HyperPod cluster as a whole."""

    node_recovery: Literal["Automatic", "None"] = "Automatic"
    continuous_provisioning: bool = True
    nodes_ready_timeout_minutes: Annotated[int, Field(ge=5, le=59)] = 55
    tiered_storage_percent: Annotated[int, Field(ge=0, le=100)] = 0
    autoscaling: Literal["none", "karpenter"] = "none"
    task_governance: bool = False
