"""Rules about what runs on the nodes: a line of the reference environment changed, and what is said about it."""

from __future__ import annotations

import pytest

from config import workload_rules
from config.load import ENVIRONMENTS, load, names, parse
from config.problems import Problem, Refused

REFERENCE = (ENVIRONMENTS / "reference.yaml").read_text()
PRODUCTION = (ENVIRONMENTS / "production.yaml").read_text()


def problems(text: str) -> list[Problem]:
    """What is wrong with an environment's text, whichever rule says it."""
    try:
        env = parse(text)
    except Refused as refused:
        return list(refused.problems)
    return [problem for rule in workload_rules.RULES for problem in rule(env)]


def reference(*replacements: tuple[str, str], of: str = REFERENCE) -> str:
    for old, new in replacements:
        assert old in of, old
        of = of.replace(old, new, 1)
    return of


def cluster(lines: str) -> tuple[str, str]:
    return ("  namespace: training\n", f"  namespace: training\n{lines}\n")


def more(lines: str) -> tuple[str, str]:
    return ("tags:\n", f"{lines}\ntags:\n")


WORKERS = "ml.g7e.12xlarge"

REFUSED = [
    # (text, field, what the sentence says, what the fix says)
    (reference((WORKERS, "ml.g5.12xlarge")), "gpu_memory_utilization", "needs 21.5 GiB (3 of them", "g7e"),
    (reference((WORKERS, "ml.g5.12xlarge")), "gpu_memory_utilization", "inferred), 0.45 of a GPU of ml.g5.12xlarge is 10.", "or shard"),
    (reference((WORKERS, "ml.p4d.24xlarge")), "gpu_memory_utilization", "ml.p4d.24xlarge is 1", "at least 0.54"),
    (reference((WORKERS, "ml.r5d.16xlarge")), "instance_type", "needs GPUs", "ml.g7e.12xlarge"),
    (reference(("max_model_len: 16000", "max_model_len: 260000")), "gpu_memory_utilization", "260000 tokens", "p5en"),
    (reference((WORKERS, "ml.g6e.xlarge")), "worker_memory_gib", "gathers 44 GiB", "more memory"),
    (reference(cluster("  worker_memory_gib: 40")), "worker_memory_gib", "leaves 26 GiB", "raise it"),
    (reference(cluster("  shared_memory_gib: 300")), "shared_memory_gib", "of which half is for processes", "at most 228"),
    (reference(cluster("  shared_memory_gib: 30\n  head_memory_gib: 40")), "shared_memory_gib", "head pod's 40 GiB", "at most 20"),
    (reference(cluster("  head_memory_gib: 1")), "head_memory_gib", "part of the head pod's 1 GiB", "at least 2"),
    (reference(cluster("  worker_memory_gib: 470")), "worker_memory_gib", "can have 456", "at most 456"),
    (reference(cluster("  environment: {HF_TOKEN: hf_123}")), "environment.HF_TOKEN", "secret", "Pod Identity"),
    (reference(cluster("  environment: {HYPERPOD_JMA_HOST: x}")), "environment.HYPERPOD_JMA_HOST", "sets this variable", "leave it out"),
    (
        reference((WORKERS, "ml.g7e.4xlarge"), ("count: 3", "count: 6"), cluster("  environment: {FI_PROVIDER: efa}")),
        "environment.FI_PROVIDER",
        "no EFA interface",
        "leave it out",
    ),
    (reference(("namespace: training", "namespace: kube-system")), "ray_cluster.namespace", "belongs to Kubernetes", "its own"),
    (reference(("namespace: training", "namespace: default")), "ray_cluster.namespace", "belongs to Kubernetes", "its own"),
    (reference(more("serving: {namespace: kuberay}")), "serving.namespace", "an operator", "its own"),
    (reference(more("hyperpod: {task_governance: true}")), "ray_cluster.namespace", "hyperpod-ns-<team>", "task_governance: false"),
    (reference(cluster("  gcs_fault_tolerance: true")), "redis_address", "needs a Redis", "address"),
    (reference(cluster("  redis_address: redis:6379")), "redis_address", "nothing reads it", "gcs_fault_tolerance"),
    (reference(more("serving: {share_workers: false}")), "share_workers", "all 6 GPUs and the RayService needs 1 more", "role: serving"),
    (reference(more("serving: {replicas: 7}")), "serving.replicas", "needs 8 GPUs and the workers have 6", "fewer"),
    (
        reference(("share_workers: false", "share_workers: false\n  replicas: 3"), of=PRODUCTION),
        "serving.replicas",
        "its group has 2",
        "fewer",
    ),
    (reference(("share_workers: false", "share_workers: true"), of=PRODUCTION), "share_workers", "stand idle", "drop the group"),
    (reference(more("serving: {images_per_prompt: 14}")), "images_per_prompt", "15 pictures", "at least 15"),
    (reference(more("serving: {max_model_len: 8192}")), "serving.max_model_len", "9216 tokens", "at least 9216"),
    # 21.6 GB by its name, 20.2 GiB by what its driver reports: the second is what vLLM gets.
    (
        reference(
            ("role: serving\n    instance_type: ml.g7e.12xlarge", "role: serving\n    instance_type: ml.g5.12xlarge"),
            ("authentication: api-key", "authentication: api-key\n  max_model_len: 30000"),
            of=PRODUCTION,
        ),
        "serving.max_model_len", "is 20.2", "g6e",
    ),
    (reference(("lora.rank: 32", "lora.rank: 1024")), "lora.rank", "up to 512", "lower"),
    (reference(more("serving: {adapters_per_replica: 500}")), "adapters_per_replica", "rank 32 take 0.16 GiB each", "set at most 4"),
    (reference(("lora.rank: 32", "lora.rank: 500"), more("serving: {adapters_per_replica: 30}")), "adapters_per_replica", "512", "most 2"),
    (reference(cluster("  environment: {'A=B': x}")), "environment.A=B", "letters, digits and `_`", "rename"),
    (reference(cluster("  environment: {'': x}")), "ray_cluster.environment.", "no digit first", "rename"),
    (reference(more("serving: {name: skyrl-visgym, namespace: training}")), "serving.name", "skyrl-visgym-head-svc", "another name"),
    (reference(("training:\n", "training:\n  base_model: /models/x\n")), "training.base_model", "below", "/shared/models/x"),
    (reference(("training:\n", "training:\n  base_model: /shared\n")), "training.base_model", "below", "/shared/models/shared"),
    (reference(("mount_path: /shared", "mount_path: /dev/shm")), "mount_path", "/dev", "/shared"),
    (reference(("mount_path: /shared", "mount_path: /opt")), "mount_path", "/opt/fetch", "/shared"),
    (reference(cluster("  gcs_fault_tolerance: true\n  redis_address: redis:99999")), "redis_address", "no port 99999", "6379"),
    (reference(cluster("  environment: {RAY_AUTH_MODE: token}")), "environment.RAY_AUTH_MODE", "sets this variable", "leave it out"),
]  # fmt: skip


@pytest.mark.parametrize(("text", "field", "rule", "fix"), REFUSED)
def test_refused_with_field_and_fix(text: str, field: str, rule: str, fix: str) -> None:
    found = problems(text)
    assert [p for p in found if field in p.field and rule in str(p) and fix in p.fix], [str(problem) for problem in found]


@pytest.mark.parametrize("name", names())
def test_environments_that_the_project_carries_pass(name: str) -> None:
    env = load(name)
    assert [str(problem) for rule in workload_rules.RULES for problem in rule(env)] == []


@pytest.mark.parametrize(
    "text",
    [
        reference((WORKERS, "ml.g7e.24xlarge")),
        reference((WORKERS, "ml.g6e.48xlarge")),
        reference((WORKERS, "ml.p5.48xlarge")),
        reference(("count: 3", "count: 0")),
        reference((WORKERS, "ml.p4d.24xlarge"), ("gpu_memory_utilization: 0.45", "gpu_memory_utilization: 0.55")),
        reference((WORKERS, "ml.g5.12xlarge"), ("tensor_parallel_size: 1", "tensor_parallel_size: 4")),
        reference(cluster("  shared_memory_gib: 228")),
        reference(cluster("  gcs_fault_tolerance: true\n  redis_address: redis:6379")),
        reference(cluster("  environment: {TOKENIZERS_PARALLELISM: 'false', NCCL_DEBUG: INFO}")),
        reference(more("serving: {replicas: 6}")),
        reference(more("serving: {adapters_per_replica: 64}")),
        reference(more("serving: {name: skyrl-visgym}")),
        reference(
            ("mount_path: /shared", "mount_path: /home/ray/data"), ("training:\n", "training:\n  base_model: /home/ray/data/models/x\n")
        ),
        reference(("count: 1\nstorage", "count: 0\nstorage"), of=PRODUCTION),
        reference(more("serving: {max_model_len: 9216}")),
    ],
)
def test_what_fits_is_not_refused(text: str) -> None:
    assert [str(problem) for problem in problems(text)] == []


def test_a_model_of_unknown_size_is_not_guessed() -> None:
    text = reference((WORKERS, "ml.g5.12xlarge"), ("training:\n", "training:\n  base_model_repository: somebody/else\n"))
    assert problems(text) == []
