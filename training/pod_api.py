"""Kubernetes as a pod of the cluster reads it: with the token of its own service account and no program beside Python.

https://kubernetes.io/docs/tasks/run-application/access-api-from-pod/
"""

from __future__ import annotations

import json
import os
import ssl
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from config import names
from config.environment import Environment
from config.problems import Unreachable
from training.kubernetes import REQUEST_TIMEOUT_SECONDS, Kubectl, Rejected

IDENTITY: Final = Path("/var/run/secrets/kubernetes.io/serviceaccount")
_GROUPS: Final = {"rayclusters.ray.io": "apis/ray.io/v1", "pods": "api/v1", "events": "api/v1"}


@dataclass(frozen=True)
class PodApi(Kubectl):
    """What of Kubectl reads, and nothing that writes: the supervisor's Role has no more."""

    identity: Path = IDENTITY

    def run(self, *arguments: str, timeout: float = REQUEST_TIMEOUT_SECONDS) -> str:
        """Refused: a pod has no kubectl."""
        raise Rejected(f"a pod of the cluster only reads; `{arguments[0]}` is for kubectl")

    def get(self, kind: str, *, namespace: str, name: str) -> dict[str, Any] | None:
        """One object; None if it or its kind is not there. Raises Rejected where the Role does not allow it, Unreachable."""
        return self._read(kind, f"namespaces/{namespace}/{kind.partition('.')[0]}/{name}")

    def list(self, kind: str, *, namespace: str, selector: str = "") -> Sequence[dict[str, Any]]:
        """All objects of a kind in a namespace; empty if the kind is not there. Raises Rejected, Unreachable."""
        query = "?" + urllib.parse.urlencode({"labelSelector": selector}) if selector else ""
        found = self._read(kind, f"namespaces/{namespace}/{kind.partition('.')[0]}{query}")
        items: list[dict[str, Any]] = (found or {}).get("items") or []
        return items

    def _read(self, kind: str, path: str) -> dict[str, Any] | None:
        host, port = os.environ.get("KUBERNETES_SERVICE_HOST", ""), os.environ.get("KUBERNETES_SERVICE_PORT", "443")
        address = f"[{host}]" if ":" in host else host
        try:
            # Read anew each time: the kubelet renews the token (https://kubernetes.io/docs/concepts/storage/projected-volumes/).
            token = (self.identity / "token").read_text(encoding="utf-8").strip()
            trusted = ssl.create_default_context(cafile=str(self.identity / "ca.crt"))
            request = urllib.request.Request(
                f"https://{address}:{port}/{_GROUPS[kind]}/{path}",
                headers={"Authorization": f"Bearer {token}", "Accept": "application/json"},
            )
            with urllib.request.urlopen(request, timeout=REQUEST_TIMEOUT_SECONDS, context=trusted) as answer:  # noqa: S310
                found: dict[str, Any] = json.loads(answer.read())
                return found
        except urllib.error.HTTPError as error:
            if error.code == 404:
                return None
            said = error.read().decode("utf-8", "replace")[:2000]
            try:
                said = str(json.loads(said)["message"])
            except (ValueError, KeyError, TypeError):
                said = f"HTTP {error.code}"
            if error.code >= 500:
                raise Unreachable(f"the Kubernetes API server does not answer: {said}") from None
            raise Rejected(f"Kubernetes refused to show {kind}: {said}") from None
        except (OSError, ValueError) as error:  # ssl.SSLError and URLError are OSErrors
            raise Unreachable(f"the Kubernetes API server cannot be reached from this pod: {error}") from None


def here(env: Environment) -> PodApi | None:
    """The way to Kubernetes where this is a pod that was told to be in the environment's own cluster; None anywhere else."""
    told = os.environ.get(names.IN_CLUSTER_VARIABLE) == names.eks_cluster(env)
    return PodApi(env, identity=IDENTITY) if told and os.environ.get("KUBERNETES_SERVICE_HOST") else None
