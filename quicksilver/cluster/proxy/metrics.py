"""Figures of the router: Prometheus metrics, a JSON status and a page that shows it.

Labels are the names of servers, as the operator gave them, and a few fixed words.
"""

from __future__ import annotations

from collections.abc import Sequence
from html import escape
from typing import Any

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest

from quicksilver.cluster.proxy.server_state import RoutedServer, ServerHealth
from quicksilver.server.breaker import BreakerState

SECONDS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120)
COLUMNS = ("number", "server", "health", "status", "breaker", "open", "elsewhere", "requests", "failures", "refusals")


class RouteMetrics:
    def __init__(self) -> None:
        self.registry = registry = CollectorRegistry()
        self.requests = Counter(
            "quicksilver_route_requests", "Requests by server and outcome", ("server", "outcome"), registry=registry
        )
        self.retries = Counter(
            "quicksilver_route_retries", "Requests sent to another server", ("reason",), registry=registry
        )
        self.picks = Counter("quicksilver_route_picks", "Why a server was chosen", ("by",), registry=registry)
        self.head_seconds = Histogram(
            "quicksilver_route_head_seconds", "Request to head of the reply", buckets=SECONDS, registry=registry
        )
        self._open = Gauge("quicksilver_route_open", "Requests open at a server", ("server",), registry=registry)
        self._ready = Gauge(
            "quicksilver_route_server_ready", "1: the server gets requests", ("server",), registry=registry
        )
        self._breaker = Gauge(
            "quicksilver_route_breaker_open", "1: the server failed too often", ("server",), registry=registry
        )

    def render(self, servers: Sequence[RoutedServer]) -> bytes:
        for server in servers:
            self._open.labels(server.name).set(server.num_open)
            self._ready.labels(server.name).set(server.health is ServerHealth.READY)
            self._breaker.labels(server.name).set(server.breaker.state is not BreakerState.CLOSED)
        return generate_latest(self.registry)


def status_of(servers: Sequence[RoutedServer], *, is_draining: bool) -> dict[str, Any]:
    return {
        "status": "draining" if is_draining else "ready" if any(s.is_available for s in servers) else "no_server",
        "servers": [
            {
                "number": server.number,
                "server": server.name,
                "health": str(server.health),
                "status": server.status,
                "breaker": str(server.breaker.state),
                "open": server.num_open,
                "elsewhere": server.num_elsewhere,
                "requests": server.counts.requests,
                "failures": server.counts.failures,
                "refusals": server.counts.refusals,
            }
            for server in servers
        ],
    }


def status_page(status: dict[str, Any]) -> str:
    """A page that reloads itself; it runs no script."""
    head = "".join(f"<th>{column}</th>" for column in COLUMNS)
    rows = "".join(
        "<tr>" + "".join(f"<td>{escape(str(server[column]))}</td>" for column in COLUMNS) + "</tr>"
        for server in status["servers"]
    )
    style = "body{font:14px system-ui;margin:2em}td,th{padding:.3em .8em;text-align:left;border-bottom:1px solid #ccc}"
    return (
        '<!doctype html><html lang="en"><head><meta charset="utf-8"><meta http-equiv="refresh" content="2">'
        f"<title>quicksilver route</title><style>{style}</style></head><body><h1>quicksilver route: "
        f"{escape(status['status'])}</h1><table><tr>{head}</tr>{rows}</table></body></html>"
    )
