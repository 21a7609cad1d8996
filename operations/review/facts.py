"""What one revision's own code says of an environment. Run as a script in that revision's folder: it imports the `config` that it
finds there, of which it knows no more than `config.load.load`, and prints JSON.

The environment with all its defaults, the version set that it names, and SkyRL's overrides with those that follow from the
environment (placement, paths).
"""

from __future__ import annotations

import dataclasses
import json
import sys
from collections.abc import Mapping
from typing import Any


def plain(value: Any) -> Any:
    """Dataclasses, mappings and tuples as JSON knows them."""
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {field.name: plain(getattr(value, field.name)) for field in dataclasses.fields(value)}
    if isinstance(value, Mapping):
        return {str(key): plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [plain(item) for item in value]
    return value


def facts(name: str) -> dict[str, Any]:
    """Environment, version set and overrides. Raises whatever this revision raises for an environment that it refuses."""
    from config.load import load

    env = load(name)
    found = {"environment": env.model_dump(mode="json"), "versions": plain(env.version_set), "overrides": plain(env.training.overrides)}
    try:
        from training import run

        _, overrides, _ = run.configuration(env, run_id="review")
    except Exception as error:  # noqa: BLE001 - another revision's launcher may have another shape; the environment's own overrides remain
        return found | {"remark": f"overrides as written, without what follows from the environment ({type(error).__name__}: {error})"}
    return found | {"overrides": plain(overrides)}


if __name__ == "__main__":
    try:
        found = facts(sys.argv[1])
    except Exception as error:
        # A file that is refused: its sentences, as the CDK app prints them, and no way through this code.
        if not getattr(error, "problems", ()):
            raise
        print(*error.problems, sep="\n", file=sys.stderr)  # type: ignore[attr-defined]
        raise SystemExit(2) from None
    print(json.dumps(found, sort_keys=True))
