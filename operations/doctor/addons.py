"""Add-on builds: the version set pins them, and only EKS knows which ones it has."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

from config import names
from config.environment import Environment
from operations.doctor.check import Finding, Subject, failed, ok

TASK_GOVERNANCE = "amazon-sagemaker-hyperpod-taskgovernance"
# What a domain brings: stacks/remote_access.py.
OF_A_DOMAIN = frozenset(("aws-ebs-csi-driver", "external-dns", "amazon-sagemaker-spaces"))


def wanted(env: Environment) -> dict[str, str]:
    """The add-ons that this environment installs, with their versions."""
    left_out = set() if env.hyperpod.task_governance else {TASK_GOVERNANCE}
    if not env.observability.enabled:
        left_out.add(names.OBSERVABILITY_ADDON)
    if env.remote_access.domain is None:
        left_out |= OF_A_DOMAIN
    return {name: version for name, version in env.version_set.platform.addons.items() if name not in left_out}


def versions(subject: Subject) -> Iterator[Finding]:
    """Each pinned build exists for the Kubernetes version."""
    env = subject.environment
    kubernetes, pinned = env.version_set.platform.kubernetes, wanted(env)

    def ask(name: str) -> list[str]:
        described = subject.account.pages("eks", "describe_addon_versions", "addons", kubernetesVersion=kubernetes, addonName=name)
        return [str(version["addonVersion"]) for addon in described for version in addon.get("addonVersions", ())]

    with ThreadPoolExecutor(4) as pool:
        found = dict(zip(pinned, pool.map(ask, pinned), strict=True))
    missing = {name: version for name, version in pinned.items() if version not in found[name]}
    for name, version in missing.items():
        there = found[name]
        newest = f"the newest is {there[0]}" if there else "EKS has none"
        yield failed(
            f"{name} {version} does not exist for Kubernetes {kubernetes}: {newest}",
            f"set it in config/versions.py after aws eks describe-addon-versions --kubernetes-version {kubernetes} --addon-name {name}",
        )
    if not missing:
        yield ok(f"all {len(pinned)} exist for Kubernetes {kubernetes}")
