"""The base of every part of an environment: frozen, strict, and with no unknown keys."""

from __future__ import annotations

from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field, StringConstraints


class Part(BaseModel):
    """A frozen piece of the environment. Types are not coerced: `count: "3"` is an error, not a three.

    Its validator is built when it is first needed: most parts are only ever read as a piece of the whole.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True, populate_by_name=False, defer_build=True)


_SENTENCES: dict[str, tuple[str, str]] = {}


def text(pattern: str, *, rule: str, example: str, max_length: int | None = None) -> StringConstraints:
    """A constraint on a string whose rule a reader can follow without reading regular expressions."""
    _SENTENCES[pattern] = (rule, f"for example {example}")
    return StringConstraints(pattern=pattern, max_length=max_length)


def sentence(pattern: str) -> tuple[str, str]:
    """Rule and fix in words for a pattern made by `text`."""
    return _SENTENCES.get(pattern, (f"it must match {pattern}", "mend the value"))


# RFC 1123 label, the common ground of Kubernetes names, CloudFormation stack names and S3 bucket parts.
Name = Annotated[
    str,
    text(
        r"^[a-z]([-a-z0-9]{0,61}[a-z0-9])?$",
        rule="a name has 1 to 63 of a-z, 0-9 and `-`, begins with a letter and does not end with `-`",
        example="workers",
    ),
]
# KubeRay adds up to ten characters to a RayCluster's name, so it allows 53 (KubeRay validation.go) and 47 for a RayService.
RayClusterName = Annotated[
    str,
    text(
        r"^[a-z]([-a-z0-9]{0,51}[a-z0-9])?$",
        rule="KubeRay takes 1 to 53 of a-z, 0-9 and `-`, beginning with a letter",
        example="skyrl-visgym",
    ),
]
RayServiceName = Annotated[
    str,
    text(
        r"^[a-z]([-a-z0-9]{0,45}[a-z0-9])?$",
        rule="KubeRay takes 1 to 47 of a-z, 0-9 and `-`, beginning with a letter",
        example="maze-vlm",
    ),
]
Arn = Annotated[
    str,
    text(
        r"^arn:aws[a-z-]*:iam::[0-9]{12}:(role|user)/[\w+=,.@/-]+$",
        rule="this is the ARN of an IAM role or user",
        example="arn:aws:iam::111122223333:role/Researcher",
    ),
]
Cidr = Annotated[str, text(r"^([0-9]{1,3}\.){3}[0-9]{1,3}/[0-9]{1,2}$", rule="this is an IPv4 range", example="10.1.0.0/16")]
AbsolutePath = Annotated[
    str,
    text(r"^/[^\s]*[^/\s]$", rule="this is an absolute path without spaces or a slash at its end", example="/shared"),
]
Scalar = bool | int | float | str
Positive = Annotated[int, Field(gt=0)]
Count = Annotated[int, Field(ge=0, le=6758)]
