"""The one way in which charts make objects: names as given, labels always there, nothing that cdk8s would add on its own.

cdk8s hashes names and cdk8s-plus adds a read-only root, a non-root user and limits of its own; a name that is a hash breaks
what finds an object by its name (claims, service accounts, RayClusters), and those pod defaults break Jobs that write.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import cdk8s

from config.environment import Environment
from config.names import PREFIX

Json = dict[str, Any]


def chart(app: cdk8s.App, name: str) -> cdk8s.Chart:
    """An empty chart that keeps the names it is given."""
    return cdk8s.Chart(app, name, disable_resource_name_hashes=True)


def labels(env: Environment, *, instance: str, component: str) -> dict[str, str]:
    """Recommended labels: https://kubernetes.io/docs/concepts/overview/working-with-objects/common-labels/"""
    return {
        "app.kubernetes.io/name": PREFIX,
        "app.kubernetes.io/instance": instance,
        "app.kubernetes.io/component": component,
        "app.kubernetes.io/part-of": f"{PREFIX}-{env.name}",
        "app.kubernetes.io/managed-by": PREFIX,
    }


def metadata(
    name: str, *, labels: Mapping[str, str], namespace: str | None = None, annotations: Mapping[str, str] | None = None
) -> cdk8s.ApiObjectMetadata:
    """Metadata with the name as given: what every construct of cdk8s-plus needs so as not to hash one."""
    return cdk8s.ApiObjectMetadata(name=name, namespace=namespace, labels=dict(labels), annotations=dict(annotations or {}) or None)


def add(
    into: cdk8s.Chart,
    api_version: str,
    kind: str,
    name: str,
    *,
    labels: Mapping[str, str],
    namespace: str | None = None,
    annotations: Mapping[str, str] | None = None,
    **body: Any,
) -> None:
    """Add one object. `body` holds its other top-level fields (`spec`, `rules`, ...) as plain JSON values without nulls."""
    given = metadata(name, labels=labels, namespace=namespace, annotations=annotations)
    made = cdk8s.ApiObject(into, f"{kind}-{namespace or ''}-{name}", api_version=api_version, kind=kind, metadata=given)
    for field, value in body.items():
        made.add_json_patch(cdk8s.JsonPatch.add(f"/{field}", value))
