"""A running Ray cluster is joined with its token only."""

from __future__ import annotations

import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from quicksilver.cluster.ray import deploy
from quicksilver.cluster.ray.config import ClusterConfig
from quicksilver.cluster.ray.replica import HOST_VARIABLE
from quicksilver.errors import QuicksilverError

CONFIG = ClusterConfig((), "10.0.0.5:6379")


class ReachedRay(Exception):
    pass


@pytest.fixture
def token_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The default file of the token, which does not exist; past the check, `connect` raises ReachedRay."""

    def require_ray() -> None:
        raise ReachedRay

    for name in ("RAY_AUTH_TOKEN", "RAY_AUTH_TOKEN_PATH"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setattr(deploy, "is_connected", lambda: False)
    monkeypatch.setattr(deploy, "require_ray", require_ray)
    return tmp_path / ".ray" / "auth_token"


def test_a_cluster_is_not_joined_without_a_token(token_file: Path) -> None:
    with pytest.raises(QuicksilverError, match="needs its token") as raised:
        deploy.connect(CONFIG)
    assert str(token_file) in raised.value.message


def test_an_empty_token_is_none(token_file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    token_file.parent.mkdir()
    token_file.write_text("\n")
    monkeypatch.setenv("RAY_AUTH_TOKEN", "")
    with pytest.raises(QuicksilverError, match="needs its token"):
        deploy.connect(CONFIG)


@pytest.mark.parametrize("place", ["RAY_AUTH_TOKEN", "RAY_AUTH_TOKEN_PATH", "home"])
def test_a_token_is_read_where_ray_reads_it(
    token_file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, place: str
) -> None:
    path = token_file if place == "home" else tmp_path / "token"
    path.parent.mkdir(exist_ok=True)
    path.write_text("secret")
    if place != "home":
        monkeypatch.setenv(place, "secret" if place == "RAY_AUTH_TOKEN" else str(path))
    with pytest.raises(ReachedRay):
        deploy.connect(CONFIG)


def test_a_cluster_that_is_started_here_needs_no_token_yet(token_file: Path) -> None:
    with pytest.raises(ReachedRay):
        deploy.connect(ClusterConfig(()))


@pytest.mark.parametrize(("address", "expected"), [("", {HOST_VARIABLE: "127.0.0.1"}), ("10.0.0.5:6379", None)])
def test_replicas_of_a_cluster_that_is_started_here_listen_on_its_address(
    monkeypatch: pytest.MonkeyPatch, address: str, expected: dict[str, str] | None
) -> None:
    started: list[dict[str, Any]] = []
    context = SimpleNamespace(gcs_address=address)
    ray = SimpleNamespace(
        init=lambda **settings: started.append(settings),
        get_runtime_context=lambda: context,
        is_initialized=lambda: False,
    )
    monkeypatch.setitem(sys.modules, "ray", ray)
    monkeypatch.delenv("PYTHONPATH", raising=False)
    for name in ("require_ray", "require_token"):
        monkeypatch.setattr(deploy, name, lambda: None)
    monkeypatch.setattr(deploy, "require_authentication", lambda found: None)
    deploy.connect(ClusterConfig((), address))
    (settings,) = started
    assert (settings["runtime_env"] or {}).get("env_vars") == expected
