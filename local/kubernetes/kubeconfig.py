"""The kubeconfig that `aws eks update-kubeconfig` writes, for a cluster of this machine.

The toolkit for `sagemaker_ray://` reads the first existing file of KUBECONFIG, its current context only, and needs a user with
`token` or `exec`.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

ACCOUNT = "000000000000"


def kubeconfig(cluster: str, *, endpoint: str, authority_data: str, region: str, account: str = ACCOUNT) -> dict[str, Any]:
    """The file's content; `authority_data` is base64 of PEM."""
    arn = f"arn:aws:eks:{region}:{account}:cluster/{cluster}"
    arguments = ["--region", region, "eks", "get-token", "--cluster-name", cluster, "--output", "json"]
    user = {"exec": {"apiVersion": "client.authentication.k8s.io/v1beta1", "command": "aws", "args": arguments}}
    return {
        "apiVersion": "v1",
        "kind": "Config",
        "preferences": {},
        "clusters": [{"name": arn, "cluster": {"server": endpoint, "certificate-authority-data": authority_data}}],
        "contexts": [{"name": arn, "context": {"cluster": arn, "user": arn}}],
        "current-context": arn,
        "users": [{"name": arn, "user": user}],
    }


def write(path: Path, content: dict[str, Any]) -> None:
    """Write the file for its owner only, whole or not at all."""
    import yaml

    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(path.name + ".new")
    temporary.touch(mode=0o600)
    temporary.write_text(yaml.safe_dump(content, sort_keys=False), encoding="utf-8")
    temporary.replace(path)
