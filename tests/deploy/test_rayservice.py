"""The RayService: valid pods, hardened, and in agreement with the cluster's code and the server's settings."""

from __future__ import annotations

import importlib
import tomllib
from typing import Any

import kubernetes_validate
import pytest
import yaml
from packaging.requirements import Requirement
from packaging.version import Version

from quicksilver.cluster.ray.config import ClusterConfig, app_name
from quicksilver.server.config import Timeouts
from tests.deploy.test_files import DEPLOY, ROOT, settings
from tests.deploy.test_kubernetes import RAYSERVICE, VERSIONS, Document, documents, of_kind

DOCUMENTS = documents(RAYSERVICE)
(SERVICE,) = of_kind(DOCUMENTS, "RayService")
CLUSTER = SERVICE["spec"]["rayClusterConfig"]
SERVE = yaml.safe_load(SERVICE["spec"]["serveConfigV2"])
GROUPS = {group["groupName"]: group for group in CLUSTER["workerGroupSpecs"]}
TEMPLATES = {"head": CLUSTER["headGroupSpec"]["template"], **{name: GROUPS[name]["template"] for name in GROUPS}}


def containers(template: Document) -> list[Document]:
    return [*template["spec"].get("initContainers", ()), *template["spec"]["containers"]]


@pytest.mark.parametrize("version", VERSIONS)
def test_documents_and_pods_are_valid(version: str) -> None:
    pods: list[Document] = [
        {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name, **each["metadata"]}, "spec": each["spec"]}
        for name, each in TEMPLATES.items()
    ]
    for document in (*pods, *(each for each in DOCUMENTS if each is not SERVICE)):
        assert kubernetes_validate.validate(document, version, strict=True) == version


def test_the_cluster_always_asks_for_a_token() -> None:
    assert CLUSTER["authOptions"] == {"mode": "token"}


def test_the_version_of_ray_is_that_of_the_package() -> None:
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    (ray,) = extras["cluster"]
    assert Requirement(ray).specifier.contains(Version(CLUSTER["rayVersion"]))


def built(application: Document) -> ClusterConfig:
    """The arguments of an application, as `serve_app.build` reads them."""
    model = {name: value for name, value in application["args"].items() if name != "drain_s"}
    return ClusterConfig.parse({"models": [model]}, RAYSERVICE.name)


def test_applications_are_those_that_api_processes_look_for() -> None:
    (config,) = [each["data"]["cluster.toml"] for each in of_kind(DOCUMENTS, "ConfigMap")]
    models = ClusterConfig.parse(tomllib.loads(config), "cluster.toml")
    assert models.address == "auto"
    assert [each["name"] for each in SERVE["applications"]] == [app_name(each.model) for each in models.models]
    for application in SERVE["applications"]:
        module, _, name = application["import_path"].partition(":")
        assert callable(getattr(importlib.import_module(module), name))
        assert application["route_prefix"] is None
        assert app_name(built(application).models[0].model) == application["name"]


def test_the_engine_pods_have_room_for_the_replicas() -> None:
    engines = GROUPS["engines"]
    (model,) = built(SERVE["applications"][0]).models
    assert model.resources == {"engine": 1}
    assert '\\"engine\\": 1' in engines["rayStartParams"]["resources"]
    assert model.min_replicas <= engines["minReplicas"]
    assert model.max_replicas <= engines["maxReplicas"]
    # Neither the head nor the API pods run a replica.
    for group in (CLUSTER["headGroupSpec"], GROUPS["api"]):
        assert group["rayStartParams"]["num-cpus"] == "0"


@pytest.mark.parametrize("name", TEMPLATES)
def test_pods_are_unprivileged_with_a_read_only_root(name: str) -> None:
    spec = TEMPLATES[name]["spec"]
    assert spec["automountServiceAccountToken"] is False
    assert spec["securityContext"]["runAsNonRoot"] is True
    assert f"USER {spec['securityContext']['runAsUser']}" in (DEPLOY / "Dockerfile").read_text()
    volumes = {volume["name"] for volume in spec["volumes"]}
    for container in containers(TEMPLATES[name]):
        assert container["securityContext"] == {
            "allowPrivilegeEscalation": False,
            "readOnlyRootFilesystem": True,
            "capabilities": {"drop": ["ALL"]},
        }
        assert container["resources"]["limits"]["memory"]
        assert {mount["name"] for mount in container["volumeMounts"]} <= volumes
        written = {mount["mountPath"] for mount in container["volumeMounts"] if not mount.get("readOnly")}
        assert written == {"/var/lib/quicksilver", "/tmp", "/dev/shm"}


@pytest.mark.parametrize("name", TEMPLATES)
def test_pods_start_ray_and_have_time_to_drain(name: str) -> None:
    spec = TEMPLATES[name]["spec"]
    assert SERVICE["metadata"]["annotations"]["ray.io/overwrite-container-cmd"] == "true"
    assert "$KUBERAY_GEN_RAY_START_CMD" in spec["containers"][0]["args"][0]
    drain_s = max(Timeouts().drain_s, *(each["args"]["drain_s"] for each in SERVE["applications"]))
    assert spec["terminationGracePeriodSeconds"] > drain_s + 5


def test_api_pods_serve_the_models_of_the_cluster() -> None:
    (api,) = GROUPS["api"]["template"]["spec"]["containers"]
    env: dict[str, Any] = {entry["name"]: entry.get("value") for entry in api["env"]}
    assert set(env) - settings() == {"POD_IP"}
    assert [app_name(model) for model in env["QUICKSILVER_MODEL"].split()] == [
        each["name"] for each in SERVE["applications"]
    ]
    mounts = {mount["mountPath"] for mount in api["volumeMounts"]}
    assert {env["QUICKSILVER_CLUSTER"].rpartition("/")[0], env["QUICKSILVER_PEPPER"].rpartition("/")[0]} <= mounts
    assert api["readinessProbe"]["httpGet"]["path"] == "/ready"
    for name in ("api", "engines"):
        pulled = [each["args"][1] for each in GROUPS[name]["template"]["spec"]["initContainers"]]
        assert pulled == env["QUICKSILVER_MODEL"].split()


def test_the_service_finds_the_api_pods_and_the_policy_all_pods() -> None:
    (service,), (policy,) = of_kind(DOCUMENTS, "Service"), of_kind(DOCUMENTS, "NetworkPolicy")
    found = [
        name
        for name, template in TEMPLATES.items()
        if service["spec"]["selector"].items() <= template["metadata"]["labels"].items()
    ]
    assert found == ["api"]
    wanted = policy["spec"]["podSelector"]["matchLabels"].items()
    assert all(wanted <= template["metadata"]["labels"].items() for template in TEMPLATES.values())
