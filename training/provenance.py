"""What a run is made of beside its settings: base model, versions, nodes, as the environment said when it was submitted.

It travels with the job, since the environment's file may be another one when somebody looks at the run.
"""

from __future__ import annotations

import contextlib
import json
from typing import TYPE_CHECKING, Final

from pydantic import Field, ValidationError

from training import layout
from training.base_model import MARKER
from training.record import Model, Nodes, Part

if TYPE_CHECKING:
    from config.environment import Environment

# Of a job's metadata.
KEY: Final = "made_of"


class Provenance(Part):
    """Empty where nobody knows."""

    model: Model = Model()
    versions: dict[str, str] = Field(default_factory=dict)
    nodes: Nodes = Nodes()

    def text(self) -> str:
        """For a job's metadata, which holds texts alone."""
        return json.dumps(self.model_dump(mode="json", exclude_defaults=True), sort_keys=True, separators=(",", ":"))


def of(env: Environment) -> Provenance:
    """What an environment says of a run that is submitted with it now."""
    training, image, platform = env.training, env.version_set.training, env.version_set.platform
    return Provenance(
        model=Model(
            path=training.base_model, repository=training.base_model_repository, subfolder=training.base_model_subfolder,
            revision=training.base_model_revision,
        ),
        versions={
            "set": env.version_set.name, "ray": image.ray, "python": image.python, "base_image": image.base,
            "skyrl_commit": image.skyrl_commit, "visgym_commit": image.visgym_commit, "kuberay": platform.kuberay,
            "kubernetes": platform.kubernetes,
        },
        nodes=Nodes(
            region=env.region, ray_cluster=f"{env.ray_cluster.namespace}/{env.ray_cluster.name}", head_type=env.head.instance_type,
            worker_type=env.workers.instance_type, workers=env.workers.count, gpus=env.training_gpus,
        ),
    )  # fmt: skip


def read(text: str | None) -> Provenance | None:
    """From a job's metadata; None where a job does not tell (submitted by an older launcher, or by hand)."""
    if not text:
        return None
    with contextlib.suppress(ValidationError):
        return Provenance.model_validate_json(text)
    return None


def fetched(env: Environment, model: Model, *, path: str) -> Model:
    """The same at `path`, with the hub's commit that lies there, where that can be seen: who fetched it wrote it into the marker."""
    here, commit = layout.here(env, f"{path}/{MARKER}"), ""
    with contextlib.suppress(OSError, ValueError, AttributeError):
        commit = str(json.loads(here.read_text(encoding="utf-8")).get("commit") or "") if here is not None else ""
    return model.model_copy(update={"path": path, "commit": commit})
