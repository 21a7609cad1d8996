"""What AWS's refusals mean, by the codes that its services give them, and what a person does about each."""

from __future__ import annotations

# What services say to a caller who may not ask.
_DENIED = frozenset(
    {
        "AccessDenied", "AccessDeniedException", "UnauthorizedOperation", "NotAuthorized", "AuthorizationError", "NotAuthorizedException",
        "UnauthorizedException", "403",
    }
)  # fmt: skip
# What they say of credentials that were good once, that they do not know, and of a clock that is wrong. A region that is not enabled
# for the account does not know its keys: https://docs.aws.amazon.com/accounts/latest/reference/manage-acct-regions.html
_EXPIRED = frozenset({"ExpiredToken", "ExpiredTokenException", "TokenRefreshRequired", "CredentialsExpired"})
STRANGE = frozenset(
    {
        "InvalidClientTokenId", "UnrecognizedClientException", "AuthFailure", "InvalidAccessKeyId", "OptInRequired",
        "SignatureDoesNotMatch", "InvalidSignatureException", "IncompleteSignature", "MissingAuthenticationToken",
        "MissingAuthenticationTokenException",
    }
)  # fmt: skip
_CLOCK_CODES = frozenset({"RequestTimeTooSkewed", "RequestExpired", "RequestInTheFuture"})
_CLOCK_WORDS = ("Signature expired", "Signature not yet current")
# https://docs.aws.amazon.com/sdkref/latest/guide/feature-retry-behavior.html
_THROTTLED = frozenset(
    {
        "Throttling", "ThrottlingException", "ThrottledException", "RequestThrottled", "RequestThrottledException", "RequestLimitExceeded",
        "TooManyRequestsException", "TransactionInProgressException", "BandwidthLimitExceeded", "SlowDown", "PriorRequestNotComplete",
        "EC2ThrottledException",
    }
)  # fmt: skip
SIGN_IN = "sign in again (aws sso login, or new keys in the shell)"
# What each of these errors, which come before anything is sent, needs.
_LOGIN = {
    "NoCredentialsError": "log in first (aws sso login), or set AWS_PROFILE",
    "PartialCredentialsError": "set both AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY",
    "CredentialRetrievalError": SIGN_IN,
    "ProfileNotFound": "check AWS_PROFILE",
    "UnauthorizedSSOTokenError": "run aws sso login",
    "SSOTokenLoadError": "run aws sso login",
    "TokenRetrievalError": "run aws sso login",
    "ConfigParseError": "mend that file",
}


def denied(code: str) -> bool:
    """Whether the caller lacks the permission."""
    return code in _DENIED


def of_clock(code: str, message: str) -> bool:
    """Whether this machine's clock is what the service does not like."""
    return code in _CLOCK_CODES or any(words in message for words in _CLOCK_WORDS)


def hopeless(code: str, message: str) -> bool:
    """Whether every other call would get the same answer: no service (no code), or none that takes these credentials."""
    return not code or of_clock(code, message) or code in _EXPIRED | STRANGE


def fix(code: str, message: str, *, operation: str, region: str = "its region") -> str:
    """What would mend it; empty where only the message itself says. Without a code, the message begins with botocore's exception."""
    if not code:
        return _LOGIN.get(message.partition(":")[0], "check the network and AWS_ENDPOINT_URL")
    if of_clock(code, message):
        return "set this machine's clock (chrony, ntpd)"
    if denied(code):
        return f"use a role that may call {operation}"
    if code in _EXPIRED:
        return SIGN_IN
    if code in STRANGE:
        return f"check the credentials, and that the account has {region} enabled (aws account list-regions)"
    return "AWS wants fewer calls: run it again in a minute" if code in _THROTTLED else ""
