"""SkyRL's own verdict on configurations: its real `from_cli_overrides` and `validate_cfg`, in a process of its own.

Reads JSON lines, each a list of `key=value` words, and writes a JSON line each: null where SkyRL accepts, else its error.
PYTHONPATH names the folder that tools/skyrl_reference.py filled. torch and the parts that need it are stood in for; what of them
decides a verdict (registered names, `is_cloud_path`, `_uses_lora_weight_sync`) is taken from SkyRL's own source text.
"""

from __future__ import annotations

import ast
import contextlib
import importlib.util
import io
import json
import logging
import sys
import types
import warnings
from pathlib import Path
from typing import Any


def source(root: Path, module: str, name: str) -> str:
    """Source text of one class or function of a module that is not imported."""
    text = (root / (module.replace(".", "/") + ".py")).read_text()
    node = next(n for n in ast.parse(text).body if getattr(n, "name", None) == name)
    return "from __future__ import annotations\n" + ast.unparse(node)


def words(root: Path, module: str, enum: str) -> list[str]:
    """The strings of an enum of a module that is not imported."""
    tree = ast.parse(source(root, module, enum))
    found = [n.value.value for n in ast.walk(tree) if isinstance(n, ast.Assign) and isinstance(n.value, ast.Constant)]
    assert found, enum
    return found


class Anything(types.ModuleType):
    """A module that has every name."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return type(name, (), {})


def registry(names: list[str]) -> type:
    return type("Registry", (), {"list_available": classmethod(lambda cls: names)})


def stand_in(root: Path) -> None:
    base = "skyrl.backends.skyrl_train"
    ppo, engines, paths = f"{base}.utils.ppo_utils", f"{base}.inference_servers.utils", f"{base}.utils.io.io"
    for name in (
        "torch", "pandas", "func_timeout", "loguru", "skyrl.backends", base, f"{base}.utils", f"{base}.utils.io",
        f"{base}.inference_servers", ppo, engines, paths,
    ):  # fmt: skip
        if name == "loguru" or name.startswith(("skyrl", "torch")) or importlib.util.find_spec(name) is None:
            sys.modules[name] = Anything(name)
            sys.modules[name].__path__ = []  # type: ignore[attr-defined]
    sys.modules["loguru"].logger = logging.getLogger("skyrl")  # type: ignore[attr-defined]
    logging.getLogger("skyrl").setLevel(logging.CRITICAL)
    exec(source(root, engines, "_uses_lora_weight_sync"), sys.modules[engines].__dict__)
    exec(source(root, paths, "is_cloud_path"), sys.modules[paths].__dict__)
    module: Any = sys.modules[ppo]
    module.AdvantageEstimatorRegistry = registry(words(root, ppo, "AdvantageEstimator"))
    module.PolicyLossRegistry = registry(words(root, ppo, "PolicyLossType"))
    module.repopulate_all_registries = lambda: None


def main() -> None:
    found = importlib.util.find_spec("skyrl")
    assert found is not None, "skyrl is not on PYTHONPATH"
    assert found.origin is not None
    root = Path(found.origin).parent.parent
    stand_in(root)
    from skyrl.train.config.config import SkyRLTrainConfig  # type: ignore[import-not-found]
    from skyrl.train.utils.utils import validate_cfg  # type: ignore[import-not-found]

    warnings.simplefilter("ignore")
    for line in sys.stdin:
        verdict: str | None = None
        with contextlib.redirect_stdout(io.StringIO()):
            try:
                validate_cfg(SkyRLTrainConfig.from_cli_overrides(json.loads(line)))
            except Exception as error:  # noqa: BLE001 - every exception is a refusal
                verdict = f"{type(error).__name__}: {str(error)[:200]}"
        sys.stdout.write(json.dumps(verdict) + "\n")


if __name__ == "__main__":
    main()
