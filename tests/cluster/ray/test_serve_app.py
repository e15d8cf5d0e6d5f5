"""The application builder of Serve, up to where Ray is needed."""

from __future__ import annotations

from typing import Any

import pytest

from quicksilver.cluster.ray import deploy
from quicksilver.cluster.ray.config import ClusterConfig, ClusterModel
from quicksilver.cluster.ray.serve_app import build
from quicksilver.errors import InvalidRequest


def test_an_application_is_built_from_the_table_of_a_model(monkeypatch: pytest.MonkeyPatch) -> None:
    built: list[tuple[ClusterModel, ClusterConfig, list[str]]] = []

    def application(model: ClusterModel, config: ClusterConfig, arguments: list[str]) -> Any:
        built.append((model, config, arguments))
        return "application"

    monkeypatch.setattr(deploy, "require_ray", lambda: None)
    monkeypatch.setattr(deploy, "application", application)
    assert build({"model": "nano", "max_replicas": 3, "resources": {"engine": 1}, "drain_s": 7}) == "application"
    ((model, config, arguments),) = built
    assert model == ClusterModel("nano", max_replicas=3, resources={"engine": 1})
    assert config.drain_s == 7
    assert arguments == deploy.worker_arguments(model)


@pytest.mark.parametrize("args", [{}, {"model": "nano", "min_replica": 1}, {"model": "nano", "max_replicas": 0}])
def test_wrong_arguments_are_refused_before_ray_is_needed(args: dict[str, Any]) -> None:
    with pytest.raises(InvalidRequest, match="arguments of the application"):
        build(args)
