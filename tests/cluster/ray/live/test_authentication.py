"""Whether a Ray cluster refuses calls without a token."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from quicksilver.cluster.ray import deploy
from quicksilver.errors import QuicksilverError
from tests.cluster.ray.live.conftest import TestCluster

pytestmark = pytest.mark.timeout(600)


def test_a_cluster_with_authentication_is_accepted(cluster: TestCluster) -> None:
    deploy.require_authentication(cluster.config.address)


def test_a_cluster_that_answers_without_a_token_is_refused() -> None:
    import grpc

    class Answer(grpc.GenericRpcHandler):  # type: ignore[misc]
        def service(self, call: Any) -> Any:
            """An empty reply to every call."""
            return grpc.unary_unary_rpc_method_handler(lambda request, context: b"")

    server = grpc.server(ThreadPoolExecutor(1), handlers=[Answer()])
    address = f"127.0.0.1:{server.add_insecure_port('127.0.0.1:0')}"
    server.start()
    try:
        with pytest.raises(QuicksilverError, match="restart it with RAY_AUTH_MODE=token"):
            deploy.require_authentication(address)
    finally:
        server.stop(None)
