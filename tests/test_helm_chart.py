"""The Helm chart of deploy/helm: its templates, rendered by Go's text/template, give the manifests of deploy/k8s/agent."""

import json
import subprocess
from pathlib import Path
from typing import Any, Final

import kubernetes_validate
import pytest
import yaml

from tests.support.tools import require_tool

ROOT: Final = Path(__file__).parent.parent
CHART: Final = ROOT / "deploy" / "helm" / "aghbus"
pytestmark = pytest.mark.timeout(600)  # the first run compiles Go's library
AGENT: Final = ROOT / "deploy" / "k8s" / "agent"


def rendered(values: dict[str, Any]) -> dict[str, str]:
    """Every template by its name, as the release patch-worker with the chart's values and these."""
    data = {
        "Values": {**yaml.safe_load((CHART / "values.yaml").read_text()), **values},
        "Release": {"Name": "patch-worker", "Namespace": "agh"},
    }
    files = {path.name: path.read_text() for path in (CHART / "templates").iterdir()}
    command = [require_tool("go"), "run", str(ROOT / "tests" / "support" / "render_chart.go")]
    text = json.dumps({"files": files, "data": data})
    done = subprocess.run(command, input=text, capture_output=True, text=True, timeout=500, check=False)
    assert done.returncode == 0, done.stderr
    found: dict[str, str] = json.loads(done.stdout)
    return found


def documents(texts: dict[str, str]) -> list[dict[str, Any]]:
    found = [yaml.safe_load(text) for name, text in texts.items() if name.endswith(".yaml")]
    return [one for one in found if one is not None]


def by_kind(found: list[dict[str, Any]]) -> dict[str, dict[str, Any]]:
    return {one["kind"]: one for one in found}


def test_the_chart_gives_the_manifests_of_the_kustomize_folder() -> None:
    image = yaml.safe_load((AGENT / "kustomization.yaml").read_text())["images"][0]
    pages = [
        (AGENT / name).read_text().replace("image: aghbus\n", f"image: {image['newName']}:{image['newTag']}\n")
        for name in ("statefulset.yaml", "network.yaml")
    ]
    wanted = by_kind([one for page in pages for one in yaml.safe_load_all(page)])
    assert by_kind(documents(rendered({}))) == wanted


def test_other_values_give_valid_manifests() -> None:
    values = {
        "podMonitor": True,
        "networkPolicy": {"enabled": False},
        "agent": {"image": "agent:1", "command": ["agent"], "env": {"QUOTED": "it\"s: 'one' \\ {2}"}, "memory": "1Gi"},
        "daemon": {"capabilities": [], "env": {}, "memory": "1Gi", "storage": "1Gi", "storageClass": "fast"},
    }
    texts = rendered(values)
    found = by_kind(documents(texts))
    assert set(found) == {"StatefulSet", "Service", "PodMonitor"}
    for kind in ("StatefulSet", "Service"):
        kubernetes_validate.validate(found[kind], "1.29", strict=True)
    pod = found["StatefulSet"]["spec"]["template"]
    (agent,) = pod["spec"]["containers"]
    assert agent["env"][-1] == {"name": "QUOTED", "value": "it\"s: 'one' \\ {2}"}
    assert found["StatefulSet"]["spec"]["volumeClaimTemplates"][0]["spec"]["storageClassName"] == "fast"
    monitor = found["PodMonitor"]["spec"]
    assert monitor["selector"]["matchLabels"].items() <= pod["metadata"]["labels"].items()
    (sidecar,) = pod["spec"]["initContainers"]
    assert [one["port"] for one in monitor["podMetricsEndpoints"]] == [port["name"] for port in sidecar["ports"]]
    assert "statefulset/patch-worker" in texts["NOTES.txt"]
