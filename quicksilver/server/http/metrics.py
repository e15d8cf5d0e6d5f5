"""Prometheus metrics: HTTP figures are counted here, engine figures are read at each scrape.

Labels are route templates, statuses and finish reasons only, so the number of series is bounded and no label contains a
tenant or a prompt.
"""

from __future__ import annotations

from collections.abc import Iterable

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric

from quicksilver.core import EngineInfo, Usage
from quicksilver.server.engine_probe import Reading
from quicksilver.server.run import OpenRequests

SECONDS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120)
TOKENS_PER_FORWARD = (1, 1.5, 2, 3, 4, 6, 8, 12, 16, 32)

GAUGES = {
    "running": ("num_requests_running", "Requests with rows in the current step"),
    "waiting": ("num_requests_waiting", "Requests that wait for pages or a slot"),
    "free_pages": ("kv_pages_free", "KV pages that are free"),
    "cached_pages": ("kv_pages_cached", "KV pages kept for prefix reuse"),
}
COUNTERS = {
    "steps": ("engine_steps", "Forwards of the model"),
    "rows": ("engine_rows", "Rows run through the model"),
    "prompt_tokens": ("prompt_tokens", "Prompt tokens taken in"),
    "cached_tokens": ("cached_tokens", "Prompt tokens found in the prefix cache"),
    "generated_tokens": ("generation_tokens", "Tokens committed"),
    "drafted_tokens": ("drafted_tokens", "Tokens drafted on canvases"),
    "accepted_tokens": ("accepted_tokens", "Drafted tokens that were committed"),
    "forced_tokens": ("forced_tokens", "Tokens a grammar or budget determined"),
    "preemptions": ("preemptions", "Requests put back to wait for pages"),
    "aborts": ("aborts", "Requests ended by their readers"),
    "failures": ("failures", "Requests that failed alone"),
    "restarts": ("worker_restarts", "Engine workers started anew"),
}


class Metrics:
    """One registry per app: two apps in one process do not share counts."""

    def __init__(self, open_requests: OpenRequests) -> None:
        self.registry = registry = CollectorRegistry()
        self._requests = Counter(
            "quicksilver_http_requests", "Requests by route and status", ("route", "status"), registry=registry
        )
        self._seconds = Histogram(
            "quicksilver_http_request_seconds", "Whole requests", ("route",), buckets=SECONDS, registry=registry
        )
        self._first = Histogram(
            "quicksilver_time_to_first_token_seconds", "Request to first token", buckets=SECONDS, registry=registry
        )
        self._whole = Histogram(
            "quicksilver_e2e_request_latency_seconds", "Request to last token", buckets=SECONDS, registry=registry
        )
        self._finished = Counter(
            "quicksilver_request_success", "Answers by how they ended", ("finished_reason",), registry=registry
        )
        self._per_forward = Histogram(
            "quicksilver_tokens_per_forward", "Tokens per forward", buckets=TOKENS_PER_FORWARD, registry=registry
        )
        gauge = Gauge("quicksilver_http_requests_open", "Requests in flight", registry=registry)
        gauge.set_function(lambda: open_requests.num_open)

    def count_request(self, route: str, status: int, seconds: float) -> None:
        self._requests.labels(route, str(status)).inc()
        self._seconds.labels(route).observe(seconds)

    def first_token(self, seconds: float) -> None:
        self._first.observe(seconds)

    def finished(self, reason: str, usage: Usage, seconds: float) -> None:
        self._finished.labels(reason).inc()
        self._whole.observe(seconds)
        if usage.forwards:
            self._per_forward.observe(usage.completion_tokens / usage.forwards)

    def render(self, info: EngineInfo, reading: Reading) -> bytes:
        scrape = CollectorRegistry()
        scrape.register(EngineFigures(info, reading))
        return generate_latest(self.registry) + generate_latest(scrape)


class EngineFigures:
    """The engine's counters as of its last reply, in Prometheus' terms."""

    def __init__(self, info: EngineInfo, reading: Reading) -> None:
        self._info = info
        self._stats = reading.stats
        self._reading = reading

    def collect(self) -> Iterable[Metric]:
        is_up = float(self._reading.is_fresh)
        yield GaugeMetricFamily("quicksilver_engine_up", "Whether the engine answered this scrape", value=is_up)
        text, age_s = "Seconds since the engine stated the figures of this scrape", self._reading.age_s
        yield GaugeMetricFamily("quicksilver_engine_stats_age_seconds", text, value=age_s)
        for field, (name, text) in GAUGES.items():
            yield GaugeMetricFamily(f"quicksilver_{name}", text, value=getattr(self._stats, field))
        for field, (name, text) in COUNTERS.items():
            yield CounterMetricFamily(f"quicksilver_{name}", text, value=getattr(self._stats, field))
        used = 1 - self._stats.free_pages / self._info.num_pages if self._info.num_pages else 0.0
        yield GaugeMetricFamily("quicksilver_kv_cache_usage", "Share of KV pages in use", value=used)
