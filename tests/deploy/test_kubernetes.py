"""The manifests and the rendered chart: valid for Kubernetes, hardened, and in agreement with the server."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import kubernetes_validate
import pytest
import yaml
from typer.main import get_command

from quicksilver.cli.app import app
from quicksilver.server.config import Timeouts
from tests.deploy.render_chart import CASES, CHART, chart_digest, rendered_file, values_file
from tests.deploy.test_files import DEPLOY, ROOT, metric_families, settings

Document = dict[str, Any]
MANIFESTS = DEPLOY / "kubernetes"
# The oldest and the newest version that the manifests are for.
VERSIONS = ("1.27", "1.36")
# Kinds of other projects, which Kubernetes' schemas do not describe.
FOREIGN = ("ServiceMonitor", "Kustomization")


def documents(path: Path) -> list[Document]:
    return [document for document in yaml.safe_load_all(path.read_text()) if document]


# In the place of the StatefulSet; see test_rayservice.py.
RAYSERVICE = MANIFESTS / "rayservice.yaml"
SETS: dict[str, list[Document]] = {
    "plain": [
        document for path in sorted(MANIFESTS.glob("*.yaml")) if path != RAYSERVICE for document in documents(path)
    ],
    **{case: documents(rendered_file(case)) for case in CASES},
}


def of_kind(documents: list[Document], kind: str) -> list[Document]:
    return [document for document in documents if document["kind"] == kind]


@pytest.fixture(params=sorted(SETS))
def manifests(request: pytest.FixtureRequest) -> list[Document]:
    return SETS[request.param]


@pytest.fixture
def workload(manifests: list[Document]) -> Document:
    (found,) = of_kind(manifests, "StatefulSet")
    return found


@pytest.fixture
def pod(workload: Document) -> Document:
    spec: Document = workload["spec"]["template"]["spec"]
    return spec


@pytest.fixture
def server(pod: Document) -> Document:
    (container,) = pod["containers"]
    return dict(container)


@pytest.mark.parametrize("version", VERSIONS)
def test_documents_are_valid(manifests: list[Document], version: str) -> None:
    for document in manifests:
        if document["kind"] not in FOREIGN:
            assert kubernetes_validate.validate(document, version, strict=True) == version


def test_an_unknown_field_is_noticed() -> None:
    document = {**SETS["plain"][0], "spec": {"replikas": 2}}
    with pytest.raises(kubernetes_validate.ValidationError):
        kubernetes_validate.validate(document, VERSIONS[0], strict=True)


@pytest.mark.parametrize("case", CASES)
def test_the_chart_was_rendered_after_its_last_change(case: str) -> None:
    """After a change of the chart: `python -m tests.deploy.render_chart`."""
    assert f"# digest: {chart_digest(values_file(case))}\n" in rendered_file(case).read_text()


def test_every_value_of_the_chart_is_used() -> None:
    templates = "".join(path.read_text() for path in (CHART / "templates").iterdir())
    values = yaml.safe_load((CHART / "values.yaml").read_text())
    names = [
        f"{name}.{inner}" if isinstance(value, dict) and value and name not in ("resources",) else name
        for name, value in values.items()
        for inner in (value if isinstance(value, dict) and value else [""])
    ]
    assert [name for name in names if f".Values.{name}" not in templates] == []


def test_kustomization_lists_files_that_exist() -> None:
    (listed,) = documents(MANIFESTS / "kustomization.yaml")
    assert all((MANIFESTS / name).is_file() for name in listed["resources"])
    assert not {"secret.example.yaml", RAYSERVICE.name} & set(listed["resources"])


def test_containers_are_unprivileged_with_a_read_only_root(pod: Document) -> None:
    assert pod["automountServiceAccountToken"] is False
    assert pod["securityContext"]["runAsNonRoot"] is True
    assert f"USER {pod['securityContext']['runAsUser']}" in (DEPLOY / "Dockerfile").read_text()
    for container in (*pod["containers"], *pod["initContainers"]):
        assert container["securityContext"] == {
            "allowPrivilegeEscalation": False,
            "readOnlyRootFilesystem": True,
            "capabilities": {"drop": ["ALL"]},
        }
        assert container["resources"]["requests"]
        assert container["resources"]["limits"]["memory"]
        written = {mount["mountPath"] for mount in container["volumeMounts"] if not mount.get("readOnly")}
        assert written == {"/var/lib/quicksilver", "/tmp"}


def test_mounts_have_volumes(workload: Document, pod: Document) -> None:
    claims = {claim["metadata"]["name"] for claim in workload["spec"]["volumeClaimTemplates"]}
    volumes = {volume["name"] for volume in pod["volumes"]} | claims
    for container in (*pod["containers"], *pod["initContainers"]):
        assert {mount["name"] for mount in container["volumeMounts"]} <= volumes


def test_settings_exist_and_parse(server: Document, monkeypatch: pytest.MonkeyPatch) -> None:
    env = {entry["name"]: entry.get("value", "from-secret") for entry in server["env"]}
    address = "10.1.2.3"
    assert set(env) - settings() == {"POD_IP"}
    for name, value in env.items():
        monkeypatch.setenv(name, value.replace("$(POD_IP)", address))
    command = get_command(app).commands["serve"]  # type: ignore[attr-defined]
    params = command.make_context("serve", []).params
    assert {address, "llm.example.com"} <= set(params["allow_host"])
    assert (params["accounts"], params["admin_host"]) == (True, "0.0.0.0")
    assert params["model"][0] in ("nano", "coder-1.5b")


def test_arguments_are_commands(pod: Document) -> None:
    commands = get_command(app).commands  # type: ignore[attr-defined]
    for container in (*pod["containers"], *pod["initContainers"]):
        name, *rest = container["args"]
        assert commands[name].make_context(name, list(rest)).params


def test_every_served_model_is_pulled_first(pod: Document, server: Document) -> None:
    pulled = [container["args"][1] for container in pod["initContainers"]]
    assert pulled == next(entry["value"] for entry in server["env"] if entry["name"] == "QUICKSILVER_MODEL").split()


def test_probes_call_the_right_routes_under_an_accepted_host(server: Document) -> None:
    paths = {name: server[name]["httpGet"]["path"] for name in ("startupProbe", "readinessProbe", "livenessProbe")}
    assert paths == {"startupProbe": "/ready", "readinessProbe": "/ready", "livenessProbe": "/health"}
    for name in paths:
        assert server[name]["httpGet"]["httpHeaders"] == [{"name": "Host", "value": "localhost"}]


def test_a_pod_has_time_to_drain(pod: Document, server: Document) -> None:
    program, seconds = server["lifecycle"]["preStop"]["exec"]["command"]
    assert program == "sleep"
    assert pod["terminationGracePeriodSeconds"] > int(seconds) + Timeouts().drain_s


def test_selectors_find_the_pods(manifests: list[Document], workload: Document) -> None:
    labels = workload["spec"]["template"]["metadata"]["labels"].items()
    found = [document["spec"]["selector"] for document in of_kind(manifests, "Service")]
    found += [document["spec"]["selector"]["matchLabels"] for document in of_kind(manifests, "PodDisruptionBudget")]
    found += [document["spec"]["podSelector"]["matchLabels"] for document in of_kind(manifests, "NetworkPolicy")]
    assert len(found) == 4
    assert all(selector.items() <= labels for selector in (*found, workload["spec"]["selector"]["matchLabels"]))


def test_ports_are_those_of_the_container(manifests: list[Document], server: Document) -> None:
    ports = {port["name"]: port["containerPort"] for port in server["ports"]}
    assert ports == {"http": 8480, "metrics": 8481}
    for service in of_kind(manifests, "Service"):
        assert {port["targetPort"] for port in service["spec"]["ports"]} <= set(ports)
    (policy,) = of_kind(manifests, "NetworkPolicy")
    assert [rule["ports"] for rule in policy["spec"]["ingress"]] == [[{"port": "http"}], [{"port": "metrics"}]]


def test_replicas_have_names(manifests: list[Document], workload: Document) -> None:
    headless = [each for each in of_kind(manifests, "Service") if each["spec"].get("clusterIP") == "None"]
    assert [each["metadata"]["name"] for each in headless] == [workload["spec"]["serviceName"]]


def test_autoscaling_follows_a_metric_that_exists(manifests: list[Document], workload: Document) -> None:
    for scaler in of_kind(manifests, "HorizontalPodAutoscaler"):
        assert scaler["spec"]["scaleTargetRef"]["name"] == workload["metadata"]["name"]
        names = {metric["pods"]["metric"]["name"] for metric in scaler["spec"]["metrics"]}
        assert names
        assert names <= metric_families()


def test_service_monitors_select_the_service_with_the_metrics(manifests: list[Document]) -> None:
    for monitor in of_kind(manifests, "ServiceMonitor"):
        wanted = monitor["spec"]["selector"]["matchLabels"].items()
        found = [each for each in of_kind(manifests, "Service") if wanted <= each["metadata"]["labels"].items()]
        assert len(found) == 1
        assert monitor["spec"]["endpoints"][0]["port"] in {port["name"] for port in found[0]["spec"]["ports"]}
        # The alerts select the job `quicksilver`.
        assert found[0]["metadata"]["labels"][monitor["spec"]["jobLabel"]] == "quicksilver"


def test_the_secret_has_the_keys_that_the_pod_reads(manifests: list[Document], pod: Document, server: Document) -> None:
    (volume,) = [volume["secret"] for volume in pod["volumes"] if "secret" in volume]
    (reference,) = [entry["valueFrom"] for entry in server["env"] if "secretKeyRef" in entry.get("valueFrom", {})]
    assert volume["defaultMode"] == 0o440
    for secret in of_kind(manifests, "Secret"):
        keys = {*secret.get("data", {}), *secret.get("stringData", {})}
        assert secret["metadata"]["name"] == volume["secretName"] == reference["secretKeyRef"]["name"]
        assert {reference["secretKeyRef"]["key"], volume["items"][0]["key"]} <= keys


def test_the_chart_has_the_version_of_the_package() -> None:
    chart = yaml.safe_load((CHART / "Chart.yaml").read_text())
    assert f'__version__ = "{chart["appVersion"]}"' in (ROOT / "quicksilver/__init__.py").read_text()
