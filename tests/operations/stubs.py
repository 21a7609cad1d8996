"""A boto3 session whose calls are answered here: requests and answers are checked against botocore's models, nothing is sent."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from email.utils import formatdate
from typing import Any

import boto3
import botocore.loaders
import botocore.session
from botocore import xform_name
from botocore.awsrequest import AWSResponse
from botocore.validate import ParamValidator

Answer = Mapping[str, Any] | Callable[[Mapping[str, Any]], Mapping[str, Any]]

# Reads each service's model once for all sessions.
LOADER = botocore.loaders.create_loader()


class Says(Exception):
    """An error of a service, by its code."""

    def __init__(self, code: str, message: str = "no") -> None:
        super().__init__(code)
        self.code, self.message = code, message


@dataclass
class Stubs:
    """`service:operation` -> its answer, a function of what was asked, or an error. `asked` keeps every call."""

    answers: dict[str, Answer | Says]
    clock: Callable[[], float] = time.time
    asked: list[tuple[str, Mapping[str, Any]]] = field(default_factory=list)

    def session(self) -> Any:
        """A session in us-west-2."""
        core = botocore.session.Session()
        core.register_component("data_loader", LOADER)
        made = boto3.Session(aws_access_key_id="A", aws_secret_access_key="B", region_name="us-west-2", botocore_session=core)
        made.events.register("before-parameter-build", self._remember)
        made.events.register("before-call", self._answer)
        return made

    def _remember(self, params: Mapping[str, Any], context: dict[str, Any], **_: Any) -> None:
        context["given"] = dict(params)

    def _answer(self, model: Any, context: Mapping[str, Any], **_: Any) -> tuple[AWSResponse, dict[str, Any]]:
        name = f"{model.service_model.service_name}:{xform_name(model.name)}"
        given = context["given"]
        self.asked.append((name, given))
        assert name in self.answers, f"nobody expected {name} {given}"
        answer = self.answers[name]
        metadata = {"HTTPStatusCode": 200, "HTTPHeaders": {"date": formatdate(self.clock(), usegmt=True)}}
        try:
            if isinstance(answer, Says):
                raise answer
            found = dict(answer(given) if callable(answer) else answer)
        except Says as said:
            return AWSResponse("", 400, {}, None), {"Error": {"Code": said.code, "Message": said.message}, "ResponseMetadata": metadata}
        _check(name, found, model.output_shape)
        return AWSResponse("", 200, {}, None), {**found, "ResponseMetadata": metadata}


def _check(name: str, answer: Mapping[str, Any], shape: Any) -> None:
    """What the service would really answer with may lack members that a model calls required, but invents none."""
    if shape is None:
        return
    report = ParamValidator().validate(answer, shape)
    wrong = [error for error in report._errors if error[0] != "missing required field"]
    assert not wrong, f"{name} does not answer so: {report.generate_report()}"
