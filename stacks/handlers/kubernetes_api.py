"""A few calls to an EKS cluster's API server with nothing but the standard library and boto3."""

from __future__ import annotations

import base64
import json
import ssl
import urllib.error
import urllib.request
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import boto3
from botocore.signers import RequestSigner

# The API server takes tokens that are at most 15 minutes old; EKS's own client signs for one minute.
TOKEN_SECONDS = 60


class Gone(Exception):
    """The cluster or its API server is not there (any more)."""


class Silent(Gone):
    """The cluster is there and its API server does not answer: for a moment (an update of the control plane), or for ever."""


@dataclass(frozen=True)
class Api:
    """One cluster's API server."""

    cluster: str
    endpoint: str
    context: ssl.SSLContext

    def get(self, path: str) -> Any:
        """The object or list at the path, or None where the server knows no such thing."""
        return self._call("GET", path)

    def delete(self, path: str, *, first_its_pods: bool = False) -> None:
        """Delete what is at the path, its dependents in the background, or before it. Nothing there is no error."""
        policy = "Foreground" if first_its_pods else "Background"
        self._call("DELETE", path, {"apiVersion": "v1", "kind": "DeleteOptions", "propagationPolicy": policy})

    def _call(self, method: str, path: str, body: Mapping[str, Any] | None = None) -> Any:
        request = urllib.request.Request(  # noqa: S310 - https, by the cluster's own description
            self.endpoint.rstrip("/") + path,
            method=method,
            data=json.dumps(body).encode() if body is not None else None,
            headers={"Authorization": f"Bearer {token(self.cluster)}", "Accept": "application/json", "Content-Type": "application/json"},
        )
        try:
            with urllib.request.urlopen(request, timeout=20, context=self.context) as answer:  # noqa: S310
                return json.load(answer)
        except urllib.error.HTTPError as error:
            if error.code == 404:
                return None
            detail = error.read(2000).decode(errors="replace")
            raise RuntimeError(f"{method} {path}: {error.code} {detail}") from None
        except (urllib.error.URLError, TimeoutError, ConnectionError) as error:
            raise Silent(f"{self.endpoint} does not answer: {error}") from None


def api(cluster: str) -> Api:
    """The API server of a cluster by name. Raises Gone if EKS knows no such cluster."""
    client = boto3.client("eks")
    try:
        described = client.describe_cluster(name=cluster)["cluster"]
    except client.exceptions.ResourceNotFoundException:
        raise Gone(f"there is no EKS cluster {cluster}") from None
    if "endpoint" not in described:
        raise Gone(f"EKS cluster {cluster} has no endpoint (status {described.get('status')})")
    authority = base64.b64decode(described["certificateAuthority"]["data"]).decode()
    return Api(cluster=cluster, endpoint=described["endpoint"], context=ssl.create_default_context(cadata=authority))


def token(cluster: str) -> str:
    """What `aws eks get-token` prints: a pre-signed GetCallerIdentity that names the cluster.

    https://github.com/kubernetes-sigs/aws-iam-authenticator#api-authorization-from-outside-a-cluster
    """
    session = boto3.session.Session()
    client = session.client("sts")
    signer = RequestSigner(
        client.meta.service_model.service_id, client.meta.region_name, "sts", "v4", session.get_credentials(), session.events
    )
    url = signer.generate_presigned_url(
        {
            "method": "GET",
            "url": f"{client.meta.endpoint_url}/?Action=GetCallerIdentity&Version=2011-06-15",
            "body": {},
            "headers": {"x-k8s-aws-id": cluster},
            "context": {},
        },
        region_name=client.meta.region_name,
        expires_in=TOKEN_SECONDS,
        operation_name="",
    )
    return "k8s-aws-v1." + base64.urlsafe_b64encode(url.encode()).decode().rstrip("=")
