"""Hybrid: the policy of a server together with the clients of its upstreams."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from quicksilver.server.hybrid.policy import HybridPolicy, read_key
from quicksilver.server.hybrid.upstream import UpstreamClient


@dataclass(frozen=True, slots=True)
class Hybrid:
    policy: HybridPolicy
    upstreams: Mapping[str, UpstreamClient] = field(default_factory=dict)

    @classmethod
    def open(cls, policy: HybridPolicy) -> Hybrid:
        """Raises InvalidRequest if the key of an upstream is missing. Connects to nothing."""
        return cls(policy, {each.name: UpstreamClient(each, read_key(each)) for each in policy.upstreams})

    async def close(self) -> None:
        for upstream in self.upstreams.values():
            await upstream.close()
