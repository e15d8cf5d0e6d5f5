"""RouteConfig: the servers behind the router, and its limits."""

from __future__ import annotations

import ssl
from dataclasses import dataclass, field
from enum import StrEnum
from urllib.parse import urlsplit

from quicksilver.core import setting
from quicksilver.errors import InvalidRequest
from quicksilver.server.breaker import BreakerConfig


class AffinityMode(StrEnum):
    """What keeps requests on one server: their prompt's beginning, or their API key."""

    PREFIX = "prefix"
    KEY = "key"


@dataclass(frozen=True, slots=True)
class Address:
    """A server, from the operator's command line; no part of it ever comes from a request."""

    host: str
    port: int
    is_tls: bool = False

    @classmethod
    def parse(cls, url: str) -> Address:
        """`http://HOST:PORT`, with or without `/v1`."""
        try:
            parts = urlsplit(url)
            port = parts.port
        except ValueError:
            raise InvalidRequest(f"--to {url}: not a valid URL", param="to") from None
        has_more = parts.username or parts.query or parts.fragment or parts.path.rstrip("/") not in ("", "/v1")
        if parts.scheme not in ("http", "https") or not parts.hostname or has_more:
            raise InvalidRequest(f"--to {url}: give http://HOST:PORT", param="to")
        is_tls = parts.scheme == "https"
        return cls(parts.hostname, port or (443 if is_tls else 80), is_tls)

    @property
    def name(self) -> str:
        """Host and port; also the Host header of requests to this server."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{host}:{self.port}"

    def tls_context(self) -> ssl.SSLContext | None:
        return ssl.create_default_context() if self.is_tls else None


@dataclass(frozen=True, slots=True)
class RouteConfig:
    addresses: tuple[Address, ...]
    affinity: AffinityMode = AffinityMode.PREFIX
    # Servers that answer without a key are used although the router listens on a public address.
    allow_anonymous: bool = False
    is_public: bool = False
    connect_s: float = setting(2.0, "Seconds for a connection to a server.")
    head_s: float = setting(600.0, "Seconds until the head of a reply; a reply that is not streamed is complete then.")
    idle_s: float = setting(120.0, "Seconds between two pieces of a reply.")
    health_interval_s: float = setting(2.0, "Seconds between two health checks of a server.")
    health_timeout_s: float = setting(2.0, "Seconds for a health check.")
    max_open: int = setting(1024, "Requests that one server may have open through this router.")
    max_retries: int = setting(2, "Further servers that a request is sent to if one cannot answer it.")
    buffer_bytes: int = setting(2**20, "Largest body that is kept for a retry; longer ones are passed on as they come.")
    keep_idle_s: float = setting(30.0, "Seconds for which an idle connection to a server is kept.")
    breaker: BreakerConfig = field(default_factory=BreakerConfig)

    def __post_init__(self) -> None:
        names = [address.name for address in self.addresses]
        if not names:
            raise InvalidRequest("give at least one server with --to URL", param="to")
        twice = next((name for name in names if names.count(name) > 1), None)
        if twice is not None:
            raise InvalidRequest(f"--to {twice} is given twice", param="to")
