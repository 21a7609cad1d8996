"""The local cloud, and stubs of AWS for what the local cloud cannot be made to say."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import yaml

from config import load
from config.environment import Environment

Variant = Callable[..., Environment]
ACCOUNT = "123456789012"


@pytest.fixture
def variant() -> Variant:
    """Environment `reference` in an account, with changes: `variant({"storage.removal": "destroy"})`."""

    def of(
        changes: dict[str, object] | None = None, *, base: str = "reference", name: str = "mine", in_account: str = ACCOUNT
    ) -> Environment:
        data = yaml.safe_load((load.ENVIRONMENTS / f"{base}.yaml").read_text())
        data |= {"name": name, "account": in_account}
        for path, value in (changes or {}).items():
            *parents, last = path.split(".")
            place = data
            for parent in parents:
                place = place[int(parent)] if parent.isdigit() else place.setdefault(parent, {})
            place[int(last) if last.isdigit() else last] = value
        return load.parse(yaml.safe_dump(data))

    return of
