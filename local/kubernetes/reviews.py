"""What a caller may ask about themselves: `kubectl auth can-i` and `kubectl auth whoami`.

The local API server lets in whoever has an access entry, and then lets them do everything: policies of access entries are EKS's.
"""

from __future__ import annotations

from typing import Any, Final

from local.kubernetes.errors import Rejected
from local.kubernetes.requests import Request

_REASON: Final = "the local API server looks for an access entry only; what its policy allows is decided by EKS"
_ANSWERS: Final[dict[tuple[str, str], dict[str, Any]]] = {
    ("authorization.k8s.io", "selfsubjectaccessreviews"): {"allowed": True, "reason": _REASON},
    ("authorization.k8s.io", "selfsubjectrulesreviews"): {
        "incomplete": False,
        "resourceRules": [{"verbs": ["*"], "apiGroups": ["*"], "resources": ["*"]}],
        "nonResourceRules": [{"verbs": ["*"], "nonResourceURLs": ["*"]}],
    },
}


def answer(request: Request) -> dict[str, Any] | None:
    """The review with its status; None where the request is no review. Raises Rejected."""
    asked = request.target
    if asked.version != "v1" or asked.name is not None:
        return None
    if (asked.group, asked.plural) == ("authentication.k8s.io", "selfsubjectreviews"):
        status: dict[str, Any] = {"userInfo": {"username": request.identity, "groups": ["system:authenticated"]}}
    elif (asked.group, asked.plural) in _ANSWERS:
        status = _ANSWERS[asked.group, asked.plural]
    else:
        return None
    if request.method != "POST":
        raise Rejected("the server does not allow this method on the requested resource", reason="MethodNotAllowed")
    content = request.content()
    if not isinstance(content, dict):
        raise Rejected("the body must be one object", reason="BadRequest")
    return {**content, "status": status}
