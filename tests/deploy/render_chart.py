"""Renders the chart in deploy/helm with Helm itself and writes what the tests read.

    python -m tests.deploy.render_chart

Uses the program `helm` if there is one, else Helm's own library from the package helm-python-sdk (`pip install
helm-python-sdk`; too large to be a dependency of the tests). Each file in tests/deploy/chart names the digest of the
chart that it was rendered from, so that a test notices a chart that was changed and not rendered.
"""

from __future__ import annotations

import hashlib
import shutil
import subprocess
import sys
from pathlib import Path

import yaml

CHART = Path(__file__).parents[2] / "deploy/helm/quicksilver"
RENDERED = Path(__file__).parent / "chart"
CASES = ("default", "full")
RELEASE, NAMESPACE = "qs", "llm"


def chart_digest(values: Path) -> str:
    """Of every file of the chart and of the values it is rendered with."""
    digest = hashlib.sha256(values.read_bytes())
    for path in sorted(path for path in CHART.rglob("*") if path.is_file()):
        digest.update(str(path.relative_to(CHART)).encode() + b"\0" + path.read_bytes())
    return digest.hexdigest()


def values_file(case: str) -> Path:
    return RENDERED / f"{case}-values.yaml"


def rendered_file(case: str) -> Path:
    return RENDERED / f"{case}.yaml"


def render(values: Path) -> tuple[str, str]:
    """The version of Helm, and the documents."""
    if program := shutil.which("helm"):
        version = subprocess.run([program, "version", "--short"], capture_output=True, text=True, check=True).stdout
        command = [program, "template", RELEASE, str(CHART), "--namespace", NAMESPACE, "--values", str(values)]
        return version.strip(), subprocess.run(command, capture_output=True, text=True, check=True).stdout
    import helm_python

    report = helm_python.lint(str(CHART), yaml.safe_load(values.read_text()))
    sys.stdout.write(f"{report}\n")
    with helm_python.Chart.load(str(CHART)) as chart:
        found = chart.render(yaml.safe_load(values.read_text()), name=RELEASE, namespace=NAMESPACE)
    texts = [text.strip() for name, text in sorted(found.items()) if name.endswith(".yaml") and text.strip()]
    return helm_python.helm_sdk_version(), "\n---\n".join(texts) + "\n"


def main() -> int:
    for case in CASES:
        values = values_file(case)
        version, text = render(values)
        header = f"# Rendered by Helm {version} with {values.name}\n# digest: {chart_digest(values)}\n"
        rendered_file(case).write_text(header + text)
    return 0


if __name__ == "__main__":
    sys.exit(main())
