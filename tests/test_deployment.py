"""The files of deploy/: manifests, configurations of NATS servers, and the tree of the image, which must start."""

import fnmatch
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import kubernetes_validate
import nkeys  # type: ignore[import-untyped] # the package has no types
import pytest
import yaml

from aghbus.daemon.config.settings import ReceiveSettings
from tests.support.daemons import Home, wait_for
from tests.support.natsutil import NATS_SERVER
from tests.support.tools import require_tool

ROOT: Final = Path(__file__).parent.parent
DEPLOY: Final = ROOT / "deploy"
FOLDERS: Final = sorted(path.parent for path in DEPLOY.glob("k8s/*/kustomization.yaml"))


def manifests() -> Iterator[tuple[str, dict[str, Any]]]:
    """Every Kubernetes resource with the file that it is in."""
    for folder in FOLDERS:
        for name in yaml.safe_load((folder / "kustomization.yaml").read_text())["resources"]:
            for document in yaml.safe_load_all((folder / name).read_text()):
                yield f"{folder.name}/{name}", document


def pods() -> Iterator[tuple[str, dict[str, Any]]]:
    for where, document in manifests():
        if document["kind"] in ("StatefulSet", "Job"):
            yield where, document["spec"]["template"]["spec"]
        elif document["kind"] == "CronJob":
            yield where, document["spec"]["jobTemplate"]["spec"]["template"]["spec"]


def the_sidecar() -> dict[str, Any]:
    (found,) = (one for where, pod in pods() if where.startswith("agent/") for one in pod["initContainers"])
    return dict(found)


def test_manifests_are_valid_and_every_file_of_a_folder_is_used() -> None:
    for where, document in manifests():
        if document["kind"] == "PodMonitor":  # of the Prometheus operator: Kubernetes has no schema of it
            continue
        kubernetes_validate.validate(document, "1.29", strict=True)
        kubernetes_validate.validate(document, "1.33", strict=True)
        assert document["apiVersion"], where
    for folder in FOLDERS:
        listed = yaml.safe_load((folder / "kustomization.yaml").read_text())["resources"]
        assert {*listed, "kustomization.yaml"} == {path.name for path in folder.glob("*.yaml")}


def test_a_manifest_with_an_unknown_field_is_refused() -> None:
    _, document = next(manifests())
    with pytest.raises(kubernetes_validate.ValidationError):
        kubernetes_validate.validate({**document, "specs": {}}, "1.33", strict=True)


def test_containers_run_closed() -> None:
    for where, pod in pods():
        assert pod["securityContext"]["runAsNonRoot"], where
        for container in (*pod["containers"], *pod.get("initContainers", [])):
            closed = container["securityContext"]
            assert closed["readOnlyRootFilesystem"] and not closed["allowPrivilegeEscalation"], where
            assert closed["capabilities"] == {"drop": ["ALL"]}, where
            assert container["resources"]["limits"]["memory"], where


def test_dedup_window_takes_at_most_half_of_each_memory_limit() -> None:
    most = 165 * ReceiveSettings().remembered  # bytes of memory for each id, measured
    sidecar = the_sidecar()
    (drill,) = (pod["containers"][0] for where, pod in pods() if where.startswith("backup/"))
    units = [path.read_text() for path in DEPLOY.glob("systemd/**/aghd*@.service")]
    limits = [int(re.findall(r"^MemoryMax=(\d+)G$", unit, re.MULTILINE)[0]) for unit in units]
    limits += [int(one["resources"]["limits"]["memory"].removesuffix("Gi")) for one in (sidecar, drill)]
    assert len(limits) == 5
    assert all(2 * most <= limit << 30 for limit in limits)


def test_daemon_is_a_native_sidecar_with_health_listener_probes() -> None:
    sidecar = the_sidecar()
    assert sidecar["restartPolicy"] == "Always"
    env = {one["name"]: one["value"] for one in sidecar["env"]}
    port = int(env["AGHD_HEALTH_LISTEN"].rsplit(":", 1)[1])
    assert {"name": "health", "containerPort": port} in sidecar["ports"]
    paths = {name: sidecar[name]["httpGet"]["path"] for name in ("startupProbe", "livenessProbe", "readinessProbe")}
    assert paths == {"startupProbe": "/startupz", "livenessProbe": "/livez", "readinessProbe": "/readyz"}


def test_backup_and_restore_use_the_volume_and_user_of_the_peer() -> None:
    there = {(where.partition("/")[0], one["kind"]): one for where, one in manifests()}
    peer, copies = there["agent", "StatefulSet"], there["backup", "PersistentVolumeClaim"]["metadata"]["name"]
    (template,) = peer["spec"]["volumeClaimTemplates"]
    state = f"{template['metadata']['name']}-{peer['metadata']['name']}-0"
    (mount,) = (one for one in the_sidecar()["volumeMounts"] if one["name"] == template["metadata"]["name"])
    user = peer["spec"]["template"]["spec"]["securityContext"]["runAsUser"]
    for where, pod in pods():
        if where.startswith(("backup/", "restore/")):
            claims = {
                one["name"]: one["persistentVolumeClaim"]["claimName"]
                for one in pod["volumes"]
                if "persistentVolumeClaim" in one
            }
            assert claims == {"state": state, "backups": copies}, where
            assert pod["securityContext"]["runAsUser"] == user
            mounts = [one for part in ("initContainers", "containers") for one in pod.get(part, [])]
            states = [one for container in mounts for one in container["volumeMounts"] if one["name"] == "state"]
            assert [one["mountPath"] for one in states] == [mount["mountPath"]]
    (rule,) = there["backup", "CronJob"]["spec"]["jobTemplate"]["spec"]["template"]["spec"]["affinity"]["podAffinity"][
        "requiredDuringSchedulingIgnoredDuringExecution"
    ]
    labels = peer["spec"]["template"]["metadata"]["labels"]
    assert rule["labelSelector"]["matchLabels"].items() <= labels.items()


def test_pod_monitors_scrape_ports_that_the_monitoring_namespace_may_reach() -> None:
    found = [document for _, document in manifests()]
    opened = {
        (one["spec"]["podSelector"]["matchLabels"]["app"], port["port"])
        for one in found
        if one["kind"] == "NetworkPolicy"
        for rule in one["spec"].get("ingress", [])
        if {"namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": "monitoring"}}} in rule["from"]
        for port in rule["ports"]
    }
    scraped = set()
    jobs = []
    for monitor in (one["spec"] for one in found if one["kind"] == "PodMonitor"):
        (endpoint,) = monitor["podMetricsEndpoints"]
        jobs += [one["replacement"] for one in endpoint["relabelings"] if one["targetLabel"] == "job"]
        for template in (one["spec"]["template"] for one in found if one["kind"] == "StatefulSet"):
            if monitor["selector"]["matchLabels"].items() <= template["metadata"]["labels"].items():
                containers = (*template["spec"]["containers"], *template["spec"].get("initContainers", []))
                assert endpoint["port"] in {port["name"] for one in containers for port in one.get("ports", [])}
                scraped.add((template["metadata"]["labels"]["app"], endpoint["port"]))
    assert scraped == opened == {("patch-worker", "health"), ("nats", "metrics")}
    assert jobs == ["aghbus", "nats"]  # as in the rules


def test_compose_has_no_default_token_and_runs_closed() -> None:
    text = (DEPLOY / "compose.yaml").read_text()
    assert "NATS_TOKEN:-" not in text
    services = yaml.safe_load(text)["services"]
    assert all(one["read_only"] and one["cap_drop"] == ["ALL"] for one in services.values())
    checked = [name for name, one in services.items() if "healthcheck" in one]
    assert checked == [name for name in services if name != "nats"]  # Podman's format of images has none
    assert [services[name]["environment"].get("AGHD_TRUST_ADMIT") for name in ("ops", "patch-worker")] == ["all", "all"]


@pytest.mark.parametrize(
    "name", ["nats.conf", "nats/server.conf", "nats/cluster.conf", "nats/leaf.conf", "k8s/nats/nats.conf"]
)
def test_configurations_of_nats_servers_are_valid(tmp_path: Path, home: Home, name: str) -> None:
    for path in (DEPLOY / name).parent.glob("*.conf"):
        text = path.read_text().replace("/etc/nats", str(tmp_path)).replace("/data", str(tmp_path / "data"))
        for at in range(9):  # nkeys, which the server checks
            text = re.sub(r"UREPLACE_WITH\w+", nkey(nkeys.PREFIX_BYTE_USER, at, public=True), text, count=1)
        (tmp_path / path.name).write_text(text)
    for line in (DEPLOY / "nats/server.conf").read_text().splitlines():
        if shown := re.match(r"# +aghctl (nats permissions .*?) >+ permissions\.conf", line):
            with (tmp_path / "permissions.conf").open("ab") as file:
                file.write(home.ctl(*shown[1].split()).stdout)
    (tmp_path / "office.conf").write_text(f"nkey: {nkey(nkeys.PREFIX_BYTE_USER, 9, public=False)}\n")
    key = ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", "-subj", "/CN=test"]
    require_tool("openssl")
    files = ["-keyout", str(tmp_path / "server.key"), "-out", str(tmp_path / "server.pem")]
    subprocess.run([*key, *files], capture_output=True, check=True)
    shutil.copy(tmp_path / "server.pem", tmp_path / "ca.pem")
    env = {"NATS_TOKEN": "text", "POD_NAME": "nats-0"}
    command = [str(NATS_SERVER), "-t", "-c", str(tmp_path / Path(name).name)]
    done = subprocess.run(command, env=env, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def nkey(kind: int, number: int, *, public: bool) -> str:
    """A key pair's public half, or its seed."""
    seed: bytes = nkeys.encode_seed(bytes([number]) * 32, kind)
    half: bytes = nkeys.from_seed(bytearray(seed)).public_key if public else seed
    return half.decode()


def context_files() -> Iterator[str]:
    """The files of the repository that .dockerignore lets into the build."""
    listed = subprocess.run(["git", "-C", str(ROOT), "ls-files"], capture_output=True, text=True, check=True).stdout
    allowed = [line[1:] for line in (ROOT / ".dockerignore").read_text().splitlines() if line.startswith("!")]
    for name in listed.splitlines():
        if any(fnmatch.fnmatch(name, pattern) or name.startswith(f"{pattern}/") for pattern in allowed):
            yield name


@pytest.mark.timeout(600)
def test_the_tree_of_the_image_starts_with_an_empty_environment(tmp_path: Path) -> None:
    """What the Containerfile does with deploy/install.sh, in a folder: no container engine is needed."""
    assert "sh deploy/install.sh /opt/aghbus" in (DEPLOY / "Containerfile").read_text()
    sources, prefix, home = tmp_path / "src", tmp_path / "opt", tmp_path / "home"
    for name in context_files():
        (sources / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / name, sources / name)
    path = f"{Path(sys.executable).resolve().parent}:{os.environ['PATH']}"
    installed = subprocess.run(
        ["sh", "deploy/install.sh", str(prefix)],
        cwd=sources, env={**os.environ, "PATH": path}, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert installed.returncode == 0, installed.stderr
    shutil.rmtree(sources)
    home.mkdir(mode=0o700)
    env = {"HOME": str(home), "PATH": f"{prefix}/bin", "XDG_RUNTIME_DIR": str(home), "PYTHONDONTWRITEBYTECODE": "1"}
    daemon = subprocess.Popen([prefix / "bin/aghd", "run", "--quiet", "--name", "ops"], env=env, cwd=home)
    try:
        check = [str(prefix / "bin/aghctl"), "--name", "ops", "status", "-o", "json"]  # as HEALTHCHECK
        wait_for(lambda: subprocess.run(check, env=env, capture_output=True, check=False).returncode == 0, 60, "health")
    finally:
        daemon.terminate()
        assert daemon.wait(30) == 0
