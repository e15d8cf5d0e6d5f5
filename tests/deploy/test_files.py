"""The files in deploy/: they parse, and every setting, metric and file that they name exists."""

from __future__ import annotations

import json
import re
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml
from typer.main import get_command

from quicksilver.accounts.keys import load_pepper
from quicksilver.cli.app import app
from quicksilver.server.config import ServerConfig
from quicksilver.server.endpoints.files.upload import OVERHEAD_BYTES

ROOT = Path(__file__).parents[2]
DEPLOY = ROOT / "deploy"
TEXTS = {str(path.relative_to(DEPLOY)): path.read_text() for path in DEPLOY.rglob("*") if path.is_file()}
# Templates are checked after Helm has rendered them.
PARSED = [name for name in sorted(TEXTS) if name.endswith((".yaml", ".json")) and "/templates/" not in name]
COMPOSE: dict[str, Any] = yaml.safe_load(TEXTS["compose.yaml"])
METRICS = (ROOT / "docs/reference/metrics.md").read_text()


def settings() -> set[str]:
    """Every environment variable that a command reads, and the folder of models."""
    serve = get_command(app).commands["serve"]  # type: ignore[attr-defined]
    return {str(option.envvar) for option in serve.params if option.envvar} | {"QUICKSILVER_HOME"}


def metric_families() -> set[str]:
    return set(re.findall(r"^\| `(quicksilver_\w+)` \|", METRICS, re.MULTILINE))


def named_metrics(text: str) -> set[str]:
    found = set(re.findall(r"\bquicksilver_[a-z0-9_]+", text))
    return {re.sub(r"_(bucket|sum|count)$", "", name) for name in found}


@pytest.mark.parametrize("name", sorted(TEXTS))
def test_every_environment_variable_is_a_setting(name: str) -> None:
    assert set(re.findall(r"\bQUICKSILVER_[A-Z_]+\b", TEXTS[name])) - settings() == set()


@pytest.mark.parametrize("name", PARSED)
def test_yaml_and_json_parse(name: str) -> None:
    assert all(yaml.safe_load_all(TEXTS[name]))


@pytest.mark.parametrize("name", ["alerts.yaml", "grafana/quicksilver.json"])
def test_rules_and_panels_name_metrics_that_exist(name: str) -> None:
    named = named_metrics(TEXTS[name])
    assert len(named) >= 6
    assert named - metric_families() == set()


def test_every_alert_and_panel_has_an_expression() -> None:
    rules = [rule for group in yaml.safe_load(TEXTS["alerts.yaml"])["groups"] for rule in group["rules"]]
    assert all(rule["alert"] and rule["expr"] and rule["annotations"]["summary"] for rule in rules)
    panels = json.loads(TEXTS["grafana/quicksilver.json"])["panels"]
    assert all(panel["targets"] and all(target["expr"] for target in panel["targets"]) for panel in panels)


def test_the_page_of_the_metrics_has_the_same_kinds_of_alerts() -> None:
    listed = set(re.findall(r"- alert: (\w+)", METRICS))
    assert listed <= set(re.findall(r"- alert: (\w+)", TEXTS["alerts.yaml"]))


def test_containers_are_unprivileged_and_read_only() -> None:
    server = COMPOSE["services"]["quicksilver"]
    assert server["read_only"] is True
    assert server["cap_drop"] == ["ALL"]
    assert server["build"]["target"] in ("cpu", "cuda")


def test_mounted_files_exist_and_volumes_are_declared() -> None:
    for service in COMPOSE["services"].values():
        for mount in service.get("volumes", ()):
            source = mount.split(":")[0]
            if source.startswith("./"):
                assert (DEPLOY / source).is_file(), source
            else:
                assert source in COMPOSE["volumes"]
        assert set(service.get("secrets", ())) <= set(COMPOSE["secrets"])


def test_the_pepper_of_the_guide_is_accepted(tmp_path: Path) -> None:
    (command,) = re.findall(r"^\(umask .*pepper\)$", (ROOT / "docs/guides/deploy.md").read_text(), re.MULTILINE)
    (tmp_path / "deploy/secrets").mkdir(parents=True)
    subprocess.run(["sh", "-c", command], cwd=tmp_path, check=True)
    assert load_pepper(tmp_path / "deploy/secrets/pepper")


def test_ports_and_versions_agree_with_the_server_and_the_makefile() -> None:
    assert "127.0.0.1:8481" in TEXTS["prometheus.yaml"]
    version = re.search(r"torch==([\d.]+)", (ROOT / "Makefile").read_text())
    assert version is not None
    assert set(re.findall(r"torch==([\d.]+)", TEXTS["Dockerfile"])) == {version[1]}
    for name in ("nginx.conf", "Caddyfile"):
        assert "127.0.0.1:8480" in TEXTS[name]


def test_proxies_let_the_largest_upload_pass() -> None:
    largest = ServerConfig().file_bytes + OVERHEAD_BYTES
    nginx = re.search(r"client_max_body_size (\d+)m;", TEXTS["nginx.conf"])
    caddy = re.search(r"max_size (\d+)MB", TEXTS["Caddyfile"])
    assert nginx is not None
    assert int(nginx[1]) * 2**20 > largest
    assert caddy is not None
    assert int(caddy[1]) * 10**6 > largest
