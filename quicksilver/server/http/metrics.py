"""`/metrics`: the counts of all API processes and the figures of the engines, in Prometheus' format.

Requests are counted in `request_record`. Engine figures are read at each scrape.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.multiprocess import MultiProcessCollector, mark_process_dead

from quicksilver.core import EngineInfo
from quicksilver.server.engine_probe import Reading
from quicksilver.server.http.request_record import Metrics

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
    "refused": ("refused", "Requests refused because they could not start in time"),
    "restarts": ("worker_restarts", "Engine workers started anew"),
    "migrations": ("migrated_requests", "Requests continued in another engine worker"),
}


def render(metrics: Metrics, figures: Sequence[ModelFigures]) -> bytes:
    """The reply of `/metrics`."""
    scrape = CollectorRegistry()
    scrape.register(EngineFigures(figures))
    scrape.register(SummedProcesses(metrics.registry, metrics.folder))
    return generate_latest(scrape)


class SummedProcesses:
    """The counts of this process and of the API processes that write to `folder`, added up."""

    def __init__(self, registry: CollectorRegistry, folder: Path | None) -> None:
        self._registry = registry
        self._folder = folder

    def collect(self) -> Iterable[Metric]:
        own = list(self._registry.collect())
        if self._folder is None:
            return own
        files = MultiProcessCollector(None, str(self._folder)).collect()  # type: ignore[no-untyped-call]
        return add_up([*own, *files])


def add_up(families: Iterable[Metric]) -> list[Metric]:
    """Families of one name become one; samples of one name with the same labels are added."""
    merged: dict[str, Metric] = {}
    for family in families:
        known = merged.setdefault(family.name, Metric(family.name, family.documentation, family.type))
        sums = {(sample.name, *sorted(sample.labels.items())): sample for sample in known.samples}
        for sample in family.samples:
            key = (sample.name, *sorted(sample.labels.items()))
            sums[key] = sums[key]._replace(value=sums[key].value + sample.value) if key in sums else sample
        known.samples = list(sums.values())
    return list(merged.values())


def forget_process(pid: int, folder: Path) -> None:
    """Drops the gauges of a process that has ended. Its counters stay."""
    mark_process_dead(pid, str(folder))  # type: ignore[no-untyped-call]


@dataclass(frozen=True, slots=True)
class ModelFigures:
    """One model at a scrape; `info` and `reading` are None while it is not loaded."""

    model: str
    info: EngineInfo | None = None
    reading: Reading | None = None


class EngineFigures:
    """The engines' counters as of their last replies, in Prometheus' terms."""

    def __init__(self, figures: Sequence[ModelFigures]) -> None:
        self._figures = figures

    def collect(self) -> Iterable[Metric]:
        yield self._gauge("model_loaded", "Whether the model is loaded", lambda f: float(f.reading is not None), True)
        yield self._gauge("engine_up", "Whether the engine answered this scrape", lambda f: float(_reading(f).is_fresh))
        text = "Seconds since the engine stated the figures of this scrape"
        yield self._gauge("engine_stats_age_seconds", text, lambda f: _reading(f).age_s)
        for field, (name, text) in GAUGES.items():
            yield self._gauge(name, text, _stat(field))
        for field, (name, text) in COUNTERS.items():
            yield self._filled(CounterMetricFamily(f"quicksilver_{name}", text, labels=("model",)), _stat(field))
        yield self._gauge("kv_cache_usage", "Share of KV pages in use", _kv_usage)

    def _gauge(self, name: str, text: str, value: FigureOf, of_all: bool = False) -> Metric:
        return self._filled(GaugeMetricFamily(f"quicksilver_{name}", text, labels=("model",)), value, of_all)

    def _filled(self, family: GaugeMetricFamily | CounterMetricFamily, value: FigureOf, of_all: bool = False) -> Metric:
        """One sample per loaded model, or per model."""
        for figures in self._figures:
            if of_all or figures.reading is not None:
                family.add_metric((figures.model,), value(figures))
        return family


FigureOf = Callable[[ModelFigures], float]


def _reading(figures: ModelFigures) -> Reading:
    assert figures.reading is not None
    return figures.reading


def _stat(field: str) -> FigureOf:
    return lambda figures: float(getattr(_reading(figures).stats, field))


def _kv_usage(figures: ModelFigures) -> float:
    num_pages = figures.info.num_pages if figures.info else 0
    return 1 - _reading(figures).stats.free_pages / num_pages if num_pages else 0.0
