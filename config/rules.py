"""Rules that cross fields: each a small named function that yields what is wrong with a whole environment."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator

from config import group_rules, network_rules, workload_rules
from config.compute import InstanceGroup, Role
from config.environment import LOCAL_ACCOUNT, Environment
from config.instances import INSTANCES
from config.problems import Problem
from config.versions import VERSION_SETS

Rule = Callable[[Environment], Iterator[Problem]]


def _at(index: int, field: str = "") -> str:
    return f"instance_groups[{index}]" + (f".{field}" if field else "")


def version_set_exists(env: Environment) -> Iterator[Problem]:
    """Versions come in named sets."""
    if env.versions not in VERSION_SETS:
        yield Problem("versions", env.versions, "there is no such version set", f"choose one of {', '.join(VERSION_SETS)}")


def instance_types_known(env: Environment) -> Iterator[Problem]:
    """A type outside the table needs its figures; a type inside it must not contradict the table."""
    for index, group in enumerate(env.instance_groups):
        if group.figures is None and group.instance_type not in INSTANCES:
            yield Problem(
                _at(index, "instance_type"),
                group.instance_type,
                "the instance table does not hold this type",
                "use one that it holds, or give its `figures` (vcpus, memory_gib, gpus, max_pods, source, ...)",
            )
        if group.figures is not None and group.instance_type in INSTANCES:
            yield Problem(
                _at(index, "figures"),
                group.instance_type,
                "the instance table already holds this type",
                "leave `figures` out",
            )


def group_names_unique(env: Environment) -> Iterator[Problem]:
    """HyperPod knows a group by its name."""
    for name, times in Counter(group.name for group in env.instance_groups).items():
        if times > 1:
            yield Problem("instance_groups", name, f"{times} groups have this name", "give each group a name of its own")


NEEDED: tuple[Role, ...] = ("head", "workers")
OPTIONAL: tuple[Role, ...] = ("system", "serving")


def roles_present(env: Environment) -> Iterator[Problem]:
    """One head group and one workers group: the RayCluster is made from them."""
    for role in NEEDED:
        found = [group for group in env.instance_groups if group.role == role]
        if len(found) != 1:
            yield Problem(
                "instance_groups",
                f"{len(found)} with role {role}",
                f"exactly one group has role {role}",
                f"give one group `role: {role}`",
            )
    for role in OPTIONAL:
        if len(env.groups(role)) > 1:
            yield Problem(
                "instance_groups",
                f"{len(env.groups(role))} with role {role}",
                f"at most one group has role {role}",
                "merge them",
            )


def head_is_one_node(env: Environment) -> Iterator[Problem]:
    """A RayCluster has one head."""
    for index, group in enumerate(env.instance_groups):
        if group.role == "head" and group.count > 1:
            yield Problem(_at(index, "count"), str(group.count), "a RayCluster has one head", "set it to 1 (or 0 between runs)")


def gpu_groups_have_gpus(env: Environment) -> Iterator[Problem]:
    """Training and serving need GPUs."""
    for index, group in enumerate(env.instance_groups):
        if group.role in ("workers", "serving") and _known(group) and group.instance.gpus == 0:
            yield Problem(
                _at(index, "instance_type"),
                group.instance_type,
                f"a {group.role} group needs GPUs and this type has none",
                "choose a GPU type such as ml.g7e.12xlarge",
            )


def deep_health_checks_fit(env: Environment) -> Iterator[Problem]:
    """HyperPod runs deep health checks on accelerated types only, and not together with custom taints."""
    for index, group in enumerate(env.instance_groups):
        if group.deep_health_checks and _known(group) and group.instance.gpus == 0:
            yield Problem(
                _at(index, "deep_health_checks"),
                group.instance_type,
                "deep health checks are for GPU types only",
                "leave them out",
            )
        if group.deep_health_checks and group.taints:
            yield Problem(
                _at(index, "taints"),
                ", ".join(taint.key for taint in group.taints),
                "HyperPod allows no custom taints on a group with deep health checks",
                "drop one of the two",
            )


def spot_without_plan(env: Environment) -> Iterator[Problem]:
    """A training plan is reserved capacity, spot is the opposite."""
    for index, group in enumerate(env.instance_groups):
        if group.capacity == "spot" and group.training_plan_arn:
            yield Problem(
                _at(index, "capacity"),
                "spot",
                "a training plan is reserved capacity",
                "drop training_plan_arn or use on-demand",
            )


def volume_holds_image(env: Environment) -> Iterator[Problem]:
    """A pull needs the compressed layers and the unpacked image at once: twice the image."""
    for index, group in enumerate(env.instance_groups):
        if group.role in ("head", "workers", "serving") and group.volume_gib < 2 * env.image.size_gib:
            yield Problem(
                _at(index, "volume_gib"),
                str(group.volume_gib),
                f"a pull takes twice the image, which has {env.image.size_gib} GiB",
                f"set at least {2 * env.image.size_gib}",
            )


def file_system_capacity(env: Environment) -> Iterator[Problem]:
    """PERSISTENT_2 SSD comes in 1200 GiB or multiples of 2400 GiB."""
    capacity = env.storage.file_system.capacity_gib
    if capacity != 1200 and capacity % 2400:
        nearest = max(1, round(capacity / 2400)) * 2400
        yield Problem(
            "storage.file_system.capacity_gib",
            str(capacity),
            "FSx for Lustre takes 1200 or a multiple of 2400 GiB",
            f"set {nearest}",
        )


def no_backup_of_a_linked_file_system(env: Environment) -> Iterator[Problem]:
    """FSx backs up no file system that is linked to S3 (https://docs.aws.amazon.com/fsx/latest/LustreGuide/using-backups-fsx.html)."""
    if not env.storage.file_system.export_to_s3:
        return
    rule = "FSx takes no backups of a file system that exports to S3"
    if days := env.storage.file_system.backup_retention_days:
        yield Problem("storage.file_system.backup_retention_days", str(days), rule, "set it to 0, or export_to_s3 to false")
    if env.storage.removal == "backup":
        yield Problem("storage.removal", "backup", rule, "use retain or destroy, or set export_to_s3 to false")


def removal_fits_protection(env: Environment) -> Iterator[Problem]:
    """A protected stack cannot be destroyed, so data that goes with it contradicts it."""
    if env.termination_protection and env.storage.removal == "destroy":
        yield Problem(
            "storage.removal",
            "destroy",
            "a protected environment must not lose its data with a stack",
            "use backup or retain",
        )


def local_is_local(env: Environment) -> Iterator[Problem]:
    """Account 000000000000 belongs to the local cloud alone, and only environment `local` may stand on it."""
    if (env.account == LOCAL_ACCOUNT) != env.name.startswith("local"):
        yield Problem(
            "account",
            env.account,
            "account 000000000000 and names that begin with `local` go together",
            "use a real account, or name the environment local",
        )


def users_in_namespaces(env: Environment) -> Iterator[Problem]:
    """Access is scoped to namespaces that this environment makes."""
    for field in ("training_users", "inference_users"):
        for index, user in enumerate(getattr(env.access, field)):
            for namespace in user.namespaces:
                if namespace not in env.namespaces:
                    yield Problem(
                        f"access.{field}[{index}].namespaces",
                        namespace,
                        "this environment has no such namespace",
                        f"choose from {', '.join(env.namespaces)}",
                    )


def pods_fit_nodes(env: Environment) -> Iterator[Problem]:
    """A pod that asks for more than its node can allocate stays Pending for ever."""
    for role, fields in (("head", ("head_cpus", "head_memory_gib")), ("workers", ("worker_cpus", "worker_memory_gib"))):
        for group in env.groups("head" if role == "head" else "workers"):
            if not _known(group):
                continue
            limits = (group.instance.pod_cpus(group.threads_per_core or 2), group.instance.pod_memory_gib())
            for field, limit in zip(fields, limits, strict=True):
                wanted = getattr(env.ray_cluster, field)
                if wanted is not None and wanted > limit:
                    yield Problem(
                        f"ray_cluster.{field}",
                        str(wanted),
                        f"a pod on {group.instance_type} can have {limit}",
                        f"set at most {limit}",
                    )


def karpenter_needs_continuous(env: Environment) -> Iterator[Problem]:
    """HyperPod's Karpenter works with continuous provisioning only."""
    if env.hyperpod.autoscaling == "karpenter" and not env.hyperpod.continuous_provisioning:
        yield Problem(
            "hyperpod.autoscaling",
            "karpenter",
            "it needs continuous provisioning",
            "set hyperpod.continuous_provisioning: true",
        )


def _known(group: InstanceGroup) -> bool:
    return group.figures is not None or group.instance_type in INSTANCES


RULES: tuple[Rule, ...] = (
    version_set_exists,
    instance_types_known,
    group_names_unique,
    roles_present,
    head_is_one_node,
    gpu_groups_have_gpus,
    deep_health_checks_fit,
    spot_without_plan,
    volume_holds_image,
    file_system_capacity,
    no_backup_of_a_linked_file_system,
    removal_fits_protection,
    local_is_local,
    users_in_namespaces,
    pods_fit_nodes,
    karpenter_needs_continuous,
    *group_rules.RULES,
    *network_rules.RULES,
    *workload_rules.RULES,
)


def problems(env: Environment) -> list[Problem]:
    """Everything that the cross-field rules find, in the order of the rules."""
    return [problem for rule in RULES for problem in rule(env)]
