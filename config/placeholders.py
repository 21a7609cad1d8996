"""Values in the manifests that come later: declared here, filled in by one function, and nothing else is ever changed."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from types import MappingProxyType
from typing import Any

from config.names import Parameter
from config.problems import Problem, Refused

# Bucket names, image URIs and roles follow from the environment (config/names.py); a file system gets its id from FSx.
PLACEHOLDERS: Mapping[str, Parameter] = MappingProxyType({
    "FILE_SYSTEM_ID": Parameter.FILE_SYSTEM_ID,
    "FILE_SYSTEM_DNS_NAME": Parameter.FILE_SYSTEM_DNS,
    "FILE_SYSTEM_MOUNT_NAME": Parameter.FILE_SYSTEM_MOUNT,
})  # fmt: skip

# What only the command knows that applies a manifest: of the supervisor's, `hyperpod-rl supervise RUN --deploy`.
AT_APPLY: Mapping[str, str] = MappingProxyType({
    "RUN_ID": "the run that is watched over",
    "ATTEMPTS": "its option --attempts",
    "HANG_FACTOR": "its option --hang-factor",
    "HANG_MINIMUM": "its option --hang-minimum, in minutes",
    "FIRST_STEP": "its option --first-step, in minutes",
    "READY": "its option --ready, in minutes",
    "SUBMITTER": "who is named as the submitter of further attempts",
    "HANG_LOG_GROUP": "CloudWatch log group of HyperPod's HANG_DETECTED events",
    "ENVIRONMENT_FILE": "text of the environment's file",
    "CODE_COMMIT": "commit of the launcher's code, with `-dirty` behind it if there were changes",
    "CODE_ZIP": "the launcher as a zip, in base64",
    "CODE_DIGEST": "digest of code, environment and options: another one is another pod",
})  # fmt: skip

_PATTERN = re.compile(r"\$\{([A-Z][A-Z0-9_]*)\}")


def placeholder(name: str) -> str:
    """The text that stands for the value in a manifest. Raises KeyError for an undeclared name."""
    if name not in AT_APPLY:
        PLACEHOLDERS[name]
    return f"${{{name}}}"


def found(value: Any) -> Iterator[str]:
    """Names of the placeholders in an object, each as often as it stands there."""
    if isinstance(value, str):
        yield from _PATTERN.findall(value)
    elif isinstance(value, Mapping):
        for item in value.values():
            yield from found(item)
    elif isinstance(value, (list, tuple)):
        for item in value:
            yield from found(item)


def fill(value: Any, values: Mapping[str, str]) -> Any:
    """A copy of the object with its placeholders replaced; the input is left alone and keys are never touched.

    `values` maps declared names to texts, which may be CDK tokens. Raises Refused for an undeclared placeholder, for one
    without a value, and for a value that is empty. `$${NAME}` is a shell's own text in no manifest of ours, so there is no escape.
    """
    problems = [_problem(name) for name in dict.fromkeys(found(value)) if not (_known(name) and values.get(name))]
    if problems:
        raise Refused(problems)
    return _fill(value, values)


def _known(name: str) -> bool:
    return name in PLACEHOLDERS or name in AT_APPLY


def _problem(name: str) -> Problem:
    if name in PLACEHOLDERS:
        return Problem(
            f"${{{name}}}", "", "this value is known only after a deploy", f"deploy first: SSM parameter {PLACEHOLDERS[name].value}"
        )
    if name in AT_APPLY:
        rule = f"this is {AT_APPLY[name]}, known only to the command that applies it"
        return Problem(f"${{{name}}}", "", rule, "apply it with `hyperpod-rl supervise RUN --deploy`")
    return Problem(f"${{{name}}}", "", "there is no such placeholder", f"the placeholders are {', '.join((*PLACEHOLDERS, *AT_APPLY))}")


def _fill(value: Any, values: Mapping[str, str]) -> Any:
    if isinstance(value, str):
        return _PATTERN.sub(lambda match: values[match[1]], value)
    if isinstance(value, Mapping):
        return {key: _fill(item, values) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_fill(item, values) for item in value]
    return value
