"""EKS tokens, made the way `aws eks get-token` makes them."""

from __future__ import annotations

import base64
import datetime
from functools import cache

import pytest
from botocore.session import Session
from botocore.signers import RequestSigner

from local.kubernetes.errors import Rejected
from local.kubernetes.tokens import identity

KEY, SECRET = "AKIAEXAMPLE", "secret-of-the-test"


@cache
def token(cluster: str = "demo", *, secret: str = SECRET, header: bool = True, action: str = "GetCallerIdentity") -> str:
    session = Session()
    session.set_credentials(KEY, secret)
    client = session.create_client("sts", region_name="us-west-2")
    signer = RequestSigner(
        client.meta.service_model.service_id, "us-west-2", "sts", "v4", session.get_credentials(), session.get_component("event_emitter")
    )
    request = {
        "method": "GET", "url": f"https://sts.us-west-2.amazonaws.com/?Action={action}&Version=2011-06-15", "body": {},
        "headers": {"x-k8s-aws-id": cluster} if header else {}, "context": {},
    }  # fmt: skip
    url = signer.generate_presigned_url(request, region_name="us-west-2", expires_in=60, operation_name="")
    return "k8s-aws-v1." + base64.urlsafe_b64encode(url.encode()).decode().rstrip("=")


def secret_of(key: str) -> str | None:
    return SECRET if key == KEY else None


def test_who_signed_it() -> None:
    assert identity(token(), "demo", secret_of=secret_of) == KEY
    assert identity(token(secret="of another account"), "demo", secret_of=lambda _: None) == KEY


@pytest.mark.parametrize(
    ("text", "why"),
    [
        (token("other"), "signature is not that of AKIAEXAMPLE for cluster demo"),
        (token(secret="wrong"), "signature is not that of"),
        (token(header=False), "x-k8s-aws-id is not signed"),
        (token(action="AssumeRole"), "not an STS GetCallerIdentity call"),
        ("k8s-aws-v1.***", "not an STS GetCallerIdentity call"),
        ("k8s-aws-v1." + base64.urlsafe_b64encode(b"https://sts.evil.example/?Action=GetCallerIdentity").decode(), "is not signed"),
        ("abc", "does not begin with k8s-aws-v1."),
        ("", "does not begin with k8s-aws-v1."),
        ("k8s-aws-v1.\xff", "not"),
    ],
)
def test_tokens_that_are_not_accepted(text: str, why: str) -> None:
    with pytest.raises(Rejected, match=r"^Unauthorized") as refused:
        identity(text, "demo", secret_of=secret_of)
    assert why in str(refused.value)
    assert refused.value.code == 401


def test_a_token_lasts_a_quarter_of_an_hour() -> None:
    made = token()
    now = datetime.datetime.now(datetime.UTC)
    assert identity(made, "demo", secret_of=secret_of, now=now + datetime.timedelta(minutes=14)) == KEY
    for minutes in (16, -10):
        with pytest.raises(Rejected, match="valid for 15 minutes"):
            identity(made, "demo", secret_of=secret_of, now=now + datetime.timedelta(minutes=minutes))
