"""`build`: the Ray Serve application of one model, for configuration files of Serve such as that of a RayService.

The application must have the name `app_name(model)`, by which API processes find it, and no route.
"""

from __future__ import annotations

from typing import Any

from quicksilver.cluster.ray import deploy
from quicksilver.cluster.ray.config import ClusterConfig


def build(args: dict[str, Any]) -> Any:
    """`args` is a table `[[models]]` of a cluster file, with the `drain_s` of the file."""
    table = dict(args)
    settings = {name: table.pop(name) for name in ("drain_s",) if name in table}
    config = ClusterConfig.parse({"models": [table], **settings}, "the arguments of the application")
    deploy.require_ray()
    (model,) = config.models
    return deploy.application(model, config, deploy.worker_arguments(model))
