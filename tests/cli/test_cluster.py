"""`quicksilver cluster` and `serve --cluster` without Ray: what is refused before Ray is needed."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any, cast

import pytest

from quicksilver.cli import cluster
from quicksilver.cli.serve_settings import ServeSettings
from quicksilver.cluster.ray import deploy
from quicksilver.cluster.ray.config import ClusterConfig
from quicksilver.errors import InvalidRequest, QuicksilverError


@pytest.fixture
def file(tmp_path: Path) -> Path:
    """A cluster that `cluster up` starts on this machine."""
    path = tmp_path / "cluster.toml"
    path.write_text('address = ""\n[[models]]\nmodel = "nano"\n')
    return path


@pytest.fixture
def joined(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The addresses of the clusters that were joined."""
    found: list[str] = []

    def connect(config: ClusterConfig, node_ip: str = "127.0.0.1") -> None:
        found.append(config.address)

    monkeypatch.setattr(deploy, "connect", connect)
    return found


async def test_an_api_process_does_not_start_an_empty_cluster_of_its_own(file: Path, joined: list[str]) -> None:
    with pytest.raises(InvalidRequest, match="set `address`"):
        await cluster.run_with_cluster(cast(ServeSettings, None), file)
    for command in (cluster.status, cluster.down, lambda path: cluster.drain(path, "node")):
        with pytest.raises(InvalidRequest, match="set `address`"):
            cast(Any, command)(file)
    assert joined == []


def test_the_process_that_started_the_cluster_uses_it(
    file: Path, joined: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(deploy, "is_connected", lambda: True)
    assert cluster._joined(file).models[0].model == "nano"
    assert joined == [""]


@pytest.mark.parametrize("node_ip", ["10.0.0.5", "0.0.0.0", "fd00::1", "gpu-a"])
def test_an_address_that_others_can_reach_needs_a_flag(file: Path, joined: list[str], node_ip: str) -> None:
    with pytest.raises(InvalidRequest, match="--allow-remote"):
        cluster.up(file, node_ip=node_ip)
    assert joined == []


@pytest.mark.parametrize(("node_ip", "allow_remote"), [("127.0.0.1", False), ("::1", False), ("10.0.0.5", True)])
def test_loopback_and_allowed_addresses_are_used(
    file: Path, joined: list[str], node_ip: str, allow_remote: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    deployed: list[ClusterConfig] = []
    monkeypatch.setattr(deploy, "deploy", deployed.append)
    monkeypatch.setattr(deploy, "status_of", lambda config: {"nodes": [], "models": []})
    file.write_text('address = "auto"\n[[models]]\nmodel = "nano"\n')
    cluster.up(file, serve=False, node_ip=node_ip, allow_remote=allow_remote)
    assert joined == ["auto"]
    assert len(deployed) == 1


@pytest.mark.parametrize("command", ["up", "status", "down", "drain", "serve"])
def test_no_command_joins_a_cluster_without_its_token(
    file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, command: str
) -> None:
    for name in ("RAY_AUTH_TOKEN", "RAY_AUTH_TOKEN_PATH"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setattr(deploy, "is_connected", lambda: False)
    file.write_text('address = "10.0.0.5:6379"\n[[models]]\nmodel = "nano"\n')
    with pytest.raises(QuicksilverError, match="needs its token"):
        run_command(command, file)


def run_command(name: str, file: Path) -> None:
    if name == "serve":
        asyncio.run(cluster.run_with_cluster(cast(ServeSettings, None), file))
    elif name == "drain":
        cluster.drain(file, "node")
    else:
        cast(Any, getattr(cluster, name))(file)
