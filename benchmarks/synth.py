"""Synthesis of `reference` against the bare import of the modules that it uses and an empty App, and with 20 groups."""

from __future__ import annotations

import re
import sys
import tempfile
from pathlib import Path

from benchmarks.measure import ROOT, compare, seconds

MODULE = re.compile(r"^(?:from|import) ((?:aws_cdk|cdk8s_plus_27|cdk8s|cdk_nag)[\w.]*)(?: as \w+)?(?: import (.+))?$", re.MULTILINE)


def imported_modules() -> list[str]:
    """Every CDK module that app.py, stacks/ and k8s/ import."""
    found = set()
    for path in [ROOT / "app.py", *(ROOT / "stacks").rglob("*.py"), *(ROOT / "k8s").rglob("*.py")]:
        if "handlers" in path.parts:  # code of Lambda functions, not of the app
            continue
        for module, names in MODULE.findall(path.read_text(encoding="utf-8")):
            found.add(module)
            found.update(f"{module}.{name}" for name in re.findall(r"\b(aws_\w+)", names or ""))
    return sorted(found)


def run() -> list[str]:
    """Warm synthesis of reference, and of reference with 20 instance groups."""
    with tempfile.TemporaryDirectory() as folder:
        bare = Path(folder) / "bare.py"
        bare.write_text("".join(f"import {module}\n" for module in imported_modules()) + "import aws_cdk\naws_cdk.App().synth()\n")
        many = Path(folder) / "many.yaml"
        reference = (ROOT / "environments" / "reference.yaml").read_text()
        groups = "".join(f"  - {{name: extra-{n}, role: other, instance_type: ml.m5.xlarge, count: 0}}\n" for n in range(17))
        many.write_text(reference.replace("storage:\n", groups + "storage:\n", 1))
        alone = seconds([sys.executable, str(bare)])
        whole = seconds(["env", f"CDK_OUTDIR={folder}/out", sys.executable, "app.py"])
        twenty = seconds(["env", f"CDK_OUTDIR={folder}/out20", f'CDK_CONTEXT_JSON={{"env": "{many}"}}', sys.executable, "app.py"])
    return [
        *compare("synth of reference / import + empty App", whole, alone, budget=1.4),
        *compare("synth with 20 groups / with 3", twenty, whole, budget=1.3),
    ]
