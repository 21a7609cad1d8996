"""EKS tokens: `k8s-aws-v1.` and the base64 of a presigned STS GetCallerIdentity URL.

https://github.com/kubernetes-sigs/aws-iam-authenticator#api-authorization-from-outside-a-cluster
The cluster's name is in the signed header x-k8s-aws-id, not in the URL: only who knows the secret key can check it.
"""

from __future__ import annotations

import base64
import binascii
import datetime
import hashlib
import hmac
from collections.abc import Callable
from urllib.parse import parse_qsl, quote, urlsplit

from local.kubernetes.errors import Rejected

PREFIX = "k8s-aws-v1."
CLUSTER_HEADER = "x-k8s-aws-id"
VALID = datetime.timedelta(minutes=15)  # whatever X-Amz-Expires says: the authenticator's limit
_LEEWAY = datetime.timedelta(minutes=5)
SecretOf = Callable[[str], str | None]


def identity(token: str, cluster: str, *, secret_of: SecretOf, now: datetime.datetime | None = None) -> str:
    """The access key id that signed the token.

    `secret_of` gives the secret of an access key id, or None where this machine does not know it: then the signature, and with
    it the cluster's name, is not checked. Raises `Rejected` (Unauthorized).
    """
    if not token.startswith(PREFIX):
        raise _no("it does not begin with k8s-aws-v1.")
    encoded = token[len(PREFIX) :]
    try:
        url = base64.urlsafe_b64decode(encoded + "=" * (-len(encoded) % 4)).decode()
    except (binascii.Error, ValueError):
        raise _no("it is not base64 of a URL") from None
    parts = urlsplit(url)
    query = dict(parse_qsl(parts.query, keep_blank_values=True))
    host = parts.hostname or ""
    if not (host.startswith("sts.") or host in ("127.0.0.1", "localhost")) or query.get("Action") != "GetCallerIdentity":
        raise _no("its URL is not an STS GetCallerIdentity call")
    signed = query.get("X-Amz-SignedHeaders", "").split(";")
    if CLUSTER_HEADER not in signed:
        raise _no(f"the header {CLUSTER_HEADER} is not signed")
    scope = query.get("X-Amz-Credential", "").split("/")
    if len(scope) != 5 or not scope[0]:
        raise _no("X-Amz-Credential is not an access key id and its scope")
    try:
        made = datetime.datetime.strptime(query.get("X-Amz-Date", ""), "%Y%m%dT%H%M%SZ").replace(tzinfo=datetime.UTC)
    except ValueError:
        raise _no("X-Amz-Date is not a time") from None
    at = now or datetime.datetime.now(datetime.UTC)
    if not made - _LEEWAY <= at <= made + VALID:
        raise _no(f"it was signed at {made:%H:%M:%S} UTC and is valid for 15 minutes")
    secret = secret_of(scope[0])
    given = query.get("X-Amz-Signature", "")
    if secret is not None and not hmac.compare_digest(_signature(parts.netloc, query, cluster, secret, scope), given):
        raise _no(f"its signature is not that of {scope[0]} for cluster {cluster}")
    return scope[0]


def _no(why: str) -> Rejected:
    return Rejected(f"Unauthorized: the EKS token is not accepted: {why}", reason="Unauthorized")


def _signature(host: str, query: dict[str, str], cluster: str, secret: str, scope: list[str]) -> str:
    """Signature version 4 of the presigned GET: https://docs.aws.amazon.com/IAM/latest/UserGuide/create-signed-request.html"""
    headers = {"host": host, CLUSTER_HEADER: cluster}
    signed = query["X-Amz-SignedHeaders"].split(";")
    pairs = sorted((quote(k, safe="-_.~"), quote(v, safe="-_.~")) for k, v in query.items() if k != "X-Amz-Signature")
    canonical = "\n".join([
        "GET", "/", "&".join(f"{k}={v}" for k, v in pairs), *(f"{name}:{headers.get(name, '')}" for name in signed), "",
        ";".join(signed), hashlib.sha256(b"").hexdigest(),
    ])  # fmt: skip
    text = "\n".join(["AWS4-HMAC-SHA256", query["X-Amz-Date"], "/".join(scope[1:]), hashlib.sha256(canonical.encode()).hexdigest()])
    key = ("AWS4" + secret).encode()
    for part in scope[1:]:
        key = hmac.new(key, part.encode(), hashlib.sha256).digest()
    return hmac.new(key, text.encode(), hashlib.sha256).hexdigest()
