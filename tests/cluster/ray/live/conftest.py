"""A Ray cluster of real raylets on this machine: a head, and nodes with one engine each, with tiny random weights.

Run by `make cluster-tests`, in an environment that has Ray; elsewhere the tests are skipped.
"""

from __future__ import annotations

import asyncio
import os
import secrets
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

from quicksilver.cluster.ray import deploy
from quicksilver.cluster.ray.client import ClusterEngine
from quicksilver.cluster.ray.config import ClusterConfig, ClusterModel
from tests.support.small_tokenizer import VOCAB_SIZE

# Ray reads them when it is imported.
os.environ["RAY_AUTH_MODE"] = "token"
os.environ["RAY_AUTH_TOKEN"] = secrets.token_hex(32)
pytest.importorskip("ray")

ROOT = Path(__file__).parents[4]
MODEL = "tiny"
# Of the first deployment, which has one replica.
SCALING = {"target_open": 2.0, "upscale_delay_s": 1.0, "downscale_delay_s": 2.0}
WORKER = ["-m", "tests.worker.worker_program", "--forward-s", "0.02", "--num-pages", "2048"]
WORKER += ["--vocab-size", str(VOCAB_SIZE)]


class TestCluster:
    """`raylets` is Ray's own test cluster."""

    __test__ = False

    def __init__(self, raylets: Any) -> None:
        self.raylets = raylets
        self.nodes: list[Any] = []
        self.engines: list[ClusterEngine] = []
        self.config = ClusterConfig((), raylets.address, drain_s=20.0, python_path=str(ROOT))

    def add_node(self) -> None:
        self.nodes.append(retried(lambda: self.raylets.add_node(num_cpus=1, resources={"engine": 1})))

    def kill_node(self) -> None:
        """Ends the oldest engine node with SIGKILL."""
        self.raylets.remove_node(self.nodes.pop(0), allow_graceful=False)

    def deploy(self, **settings: Any) -> None:
        """Deploys the tiny model, or changes its settings."""
        model = ClusterModel(MODEL, num_cpus=0, resources={"engine": 1}, **settings)
        self.config = ClusterConfig((model,), self.config.address, self.config.drain_s, self.config.python_path)
        deploy.deploy(self.config, lambda _: WORKER)

    async def engine(self) -> ClusterEngine:
        """A client with a connection to every running replica; closed at the end of the test."""
        engine = await deploy.open_engine(MODEL).start()
        self.engines.append(engine)
        async with asyncio.timeout(60):
            while len(engine._replicas) < self.replicas().get("RUNNING", 0):
                await asyncio.sleep(0.1)
        return engine

    def replicas(self) -> dict[str, int]:
        found: dict[str, int] = deploy.status_of(self.config)["models"][0]["replicas"]
        return found


def retried(start: Callable[[], Any]) -> Any:
    """Ray gives a raylet 30 s to start, which a busy machine may exceed."""
    for _ in range(3):
        try:
            return start()
        except Exception as error:
            last = error
    raise last


@pytest.fixture(scope="session")
def running_cluster() -> Iterator[TestCluster]:
    deploy.require_ray()
    import ray
    from ray import serve
    from ray.cluster_utils import Cluster

    head = {"num_cpus": 1, "include_dashboard": False}
    raylets = retried(lambda: Cluster(initialize_head=True, head_node_args=head))
    found = TestCluster(raylets)
    try:
        for _ in range(2):
            found.add_node()
        deploy.connect(found.config)
        found.deploy(min_replicas=1, max_replicas=2, **SCALING)
        yield found
    finally:
        serve.shutdown()
        ray.shutdown()
        raylets.shutdown()


@pytest_asyncio.fixture(loop_scope="session")
async def cluster(running_cluster: TestCluster) -> AsyncIterator[TestCluster]:
    yield running_cluster
    while running_cluster.engines:
        await running_cluster.engines.pop().close()


@pytest.fixture
def wait_until() -> Callable[..., Any]:
    async def wait(condition: Callable[[], bool], limit_s: float = 60.0) -> None:
        async with asyncio.timeout(limit_s):
            while not condition():
                await asyncio.sleep(0.2)

    return wait
