"""Whether a Ray cluster refuses calls without a token."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from threading import Event
from typing import Any

import pytest

from quicksilver.cluster.ray import deploy
from quicksilver.errors import QuicksilverError
from tests.cluster.ray.live.conftest import TestCluster

pytestmark = pytest.mark.timeout(600)


def test_a_cluster_with_authentication_is_accepted(running_cluster: TestCluster) -> None:
    """It is reached, and it refuses the call because the token is missing."""
    import grpc
    from ray.core.generated import gcs_service_pb2, gcs_service_pb2_grpc

    address = running_cluster.config.address
    deploy.require_authentication(address)
    with grpc.insecure_channel(address) as channel:
        nodes = gcs_service_pb2_grpc.NodeInfoGcsServiceStub(channel)
        with pytest.raises(grpc.RpcError) as raised:
            nodes.GetClusterId(gcs_service_pb2.GetClusterIdRequest(), timeout=60)
    assert raised.value.code() is grpc.StatusCode.UNAUTHENTICATED


@contextmanager
def answering(answer: Callable[[], bytes]) -> Iterator[str]:
    """The address of a server with this reply to every call."""
    import grpc

    class Answer(grpc.GenericRpcHandler):  # type: ignore[misc]
        def service(self, call: Any) -> Any:
            return grpc.unary_unary_rpc_method_handler(lambda request, context: answer())

    server = grpc.server(ThreadPoolExecutor(1), handlers=[Answer()])
    address = f"127.0.0.1:{server.add_insecure_port('127.0.0.1:0')}"
    server.start()
    try:
        yield address
    finally:
        server.stop(None)


def test_a_cluster_that_answers_without_a_token_is_refused() -> None:
    with (
        answering(lambda: b"") as address,
        pytest.raises(QuicksilverError, match="restart it with RAY_AUTH_MODE=token"),
    ):
        deploy.require_authentication(address)


def test_a_cluster_that_does_not_answer_in_time_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    go_on = Event()
    monkeypatch.setattr(deploy, "PROBE_S", 0.2)

    def late() -> bytes:
        go_on.wait(60)
        return b""

    try:
        with answering(late) as address, pytest.raises(QuicksilverError, match="did not answer"):
            deploy.require_authentication(address)
    finally:
        go_on.set()
