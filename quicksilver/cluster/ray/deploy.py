"""Ray Serve applications of the engines: start, join, status, drain and end.

Serve runs without its HTTP proxies; API processes ask the deployments by handle where their replicas listen. Ray
carries out code of every process that reaches its ports, so token authentication is always on: a running cluster is
joined with its token only, and only if it refuses calls without one. The replicas of a cluster that is started here
listen on loopback unless another address is given. For its own ports Ray uses another address of the machine instead of
loopback, and some of them listen on all interfaces.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from hashlib import blake2b
from pathlib import Path
from typing import Any

from quicksilver import __version__
from quicksilver.cluster.ray import messages
from quicksilver.cluster.ray.client import ClusterEngine
from quicksilver.cluster.ray.config import ClusterConfig, ClusterModel, app_name
from quicksilver.cluster.ray.replica import HOST_VARIABLE, EngineReplica
from quicksilver.errors import QuicksilverError
from quicksilver.worker.program import WorkerConfig

ROUTER = "quicksilver.cluster.ray.router:UnknownFirstRouter"
POLICY = "quicksilver.cluster.ray.scaling:num_replicas"
# Seconds between two reports of open requests by a replica, and over which autoscaling takes their mean.
REPORT_S, LOOK_BACK_S = 1.0, 5.0
HEALTH_PERIOD_S, HEALTH_TIMEOUT_S = 2.0, 10.0
# Seconds for the call that tests whether the cluster refuses calls without a token.
PROBE_S = 10.0


def require_ray() -> None:
    """Turns token authentication on. Raises QuicksilverError if Ray is not installed."""
    os.environ["RAY_AUTH_MODE"] = "token"
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    try:
        import ray.serve  # noqa: F401
    except ImportError:
        raise QuicksilverError('a cluster needs one more package: pip install ".[cluster]" in a checkout') from None


def require_token() -> None:
    """Raises QuicksilverError if this process has no token in the places where Ray reads it."""
    path = Path(os.environ.get("RAY_AUTH_TOKEN_PATH") or Path.home() / ".ray" / "auth_token")
    token = os.environ.get("RAY_AUTH_TOKEN") or (path.read_text() if path.is_file() else "")
    if not token.strip():
        raise QuicksilverError(
            f"joining a Ray cluster needs its token: copy it to {path}, or set RAY_AUTH_TOKEN or RAY_AUTH_TOKEN_PATH"
        )


def require_authentication(address: str) -> None:
    """Raises QuicksilverError if the Ray cluster answers a call without a token, or does not answer in time."""
    import grpc
    from ray.core.generated import gcs_service_pb2, gcs_service_pb2_grpc

    with grpc.insecure_channel(address) as channel:
        nodes = gcs_service_pb2_grpc.NodeInfoGcsServiceStub(channel)
        try:
            nodes.GetClusterId(gcs_service_pb2.GetClusterIdRequest(), timeout=PROBE_S)
        except grpc.RpcError as error:
            if error.code() is not grpc.StatusCode.DEADLINE_EXCEEDED:
                return
            raise QuicksilverError(f"the Ray cluster at {address} did not answer in {PROBE_S:g} s; try again") from None
    raise QuicksilverError(
        f"the Ray cluster at {address} runs code of every process that reaches it; restart it with RAY_AUTH_MODE=token"
    )


def is_connected() -> bool:
    """Whether this process has joined or started a cluster."""
    ray = sys.modules.get("ray")
    return ray is not None and bool(ray.is_initialized())


def connect(config: ClusterConfig, node_ip: str = "127.0.0.1") -> None:
    """Joins the cluster, or starts one on this machine if the file names none."""
    if is_connected():
        return
    if config.address:
        require_token()
    require_ray()
    import ray

    path = os.pathsep.join(filter(None, (config.python_path, os.environ.get("PYTHONPATH", ""))))
    variables = {"PYTHONPATH": path} if path else {}
    if not config.address:
        # Ray itself replaces a loopback address by another one of the machine.
        variables[HOST_VARIABLE] = node_ip
    settings: dict[str, Any] = {
        "namespace": "quicksilver",
        "log_to_driver": False,
        "runtime_env": {"env_vars": variables} if variables else None,
    }
    if config.address:
        ray.init(address=config.address, **settings)
        try:
            require_authentication(ray.get_runtime_context().gcs_address)
        except QuicksilverError:
            ray.shutdown()
            raise
    else:
        # Not a cluster that happens to run on this machine already.
        ray.init(address="local", include_dashboard=False, _node_ip_address=node_ip, **settings)


def worker_arguments(model: ClusterModel) -> list[str]:
    """The arguments of Python for a worker of the model."""
    return WorkerConfig(model.model, dict(model.load), dict(model.engine)).command()[1:]


def deploy(config: ClusterConfig, arguments: Callable[[ClusterModel], list[str]] = worker_arguments) -> None:
    """Starts or updates every engine; returns when each has its least number of replicas. Replicas restart if their
    resources, the settings of their worker or the version of this package have changed."""
    from ray import serve

    serve.start(proxy_location="Disabled")
    targets = [
        serve.RunTarget(
            target=application(model, config, arguments(model)), name=app_name(model.model), route_prefix=None
        )
        for model in config.models
    ]
    serve.run_many(targets)


def application(model: ClusterModel, config: ClusterConfig, arguments: list[str]) -> Any:
    """The Serve application of a model; `arguments` are those of Python for its workers."""
    from ray import serve
    from ray.serve.config import AutoscalingConfig, AutoscalingPolicy, RequestRouterConfig

    deployment = serve.deployment(
        EngineReplica,
        name=app_name(model.model),
        ray_actor_options={
            "num_cpus": model.num_cpus,
            "num_gpus": model.num_gpus,
            "resources": model.resources,
        },
        autoscaling_config=AutoscalingConfig(
            min_replicas=model.min_replicas,
            max_replicas=model.max_replicas,
            target_ongoing_requests=model.target_open,
            upscale_delay_s=model.upscale_delay_s,
            downscale_delay_s=model.downscale_delay_s,
            metrics_interval_s=REPORT_S,
            look_back_period_s=LOOK_BACK_S,
            policy=AutoscalingPolicy(policy_function=POLICY),
        ),
        graceful_shutdown_timeout_s=config.drain_s,
        graceful_shutdown_wait_loop_s=0.5,
        health_check_period_s=HEALTH_PERIOD_S,
        health_check_timeout_s=HEALTH_TIMEOUT_S,
        request_router_config=RequestRouterConfig(request_router_class=ROUTER),
    )
    body = messages.encode(messages.ReplicaConfig(arguments, model.max_open))
    # Without a version, Ray Serve restarts all replicas at every deployment, also if only their number is changed.
    version = blake2b(body + __version__.encode(), digest_size=8).hexdigest()
    return deployment.options(version=version, _internal=True).bind(body)


def open_engine(model: str) -> ClusterEngine:
    """A client of the model's replicas; `start` before use."""
    from ray import serve

    return ClusterEngine(serve.get_app_handle(app_name(model)))


def status_of(config: ClusterConfig) -> dict[str, Any]:
    """Nodes and models of the cluster as JSON."""
    import ray
    from ray import serve

    applications = serve.status().applications
    return {
        "nodes": [
            {
                "id": node["NodeID"],
                "address": node["NodeManagerAddress"],
                "is_alive": node["Alive"],
                "resources": node["Resources"],
            }
            for node in ray.nodes()
        ],
        "models": [_model_status(model, applications.get(app_name(model.model))) for model in config.models],
    }


def _model_status(model: ClusterModel, application: Any) -> dict[str, Any]:
    states: dict[str, int] = {}
    if application is not None:
        for deployment in application.deployments.values():
            states = {_text(state): count for state, count in deployment.replica_states.items()}
    return {
        "model": model.model,
        "status": _text(application.status) if application is not None else "NOT_DEPLOYED",
        "replicas": states,
        "min_replicas": model.min_replicas,
        "max_replicas": model.max_replicas,
    }


def _text(state: Any) -> str:
    """The value of an enumeration, or a string as it is."""
    return str(getattr(state, "value", state))


def drain(node_id: str, seconds: float) -> None:
    """Moves all replicas away from a node; their open requests may finish within `seconds`."""
    import ray

    command = [
        *(str(Path(sys.executable).parent / "ray"), "drain-node", "--address", ray.get_runtime_context().gcs_address),
        *("--node-id", node_id, "--reason", "DRAIN_NODE_REASON_PREEMPTION"),
        *("--reason-message", "quicksilver cluster drain", "--deadline-remaining-seconds", str(int(seconds))),
    ]
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        raise QuicksilverError(f"the node cannot be drained: {done.stderr.strip().splitlines()[-1:]}")


def take_down(config: ClusterConfig) -> None:
    """Ends the engines of the file; the Ray cluster keeps running."""
    from ray import serve

    for model in config.models:
        serve.delete(app_name(model.model))
