"""Alerts and Grafana panels name metrics and labels that a running server exposes."""

from __future__ import annotations

import json
from collections import defaultdict
from pathlib import Path

import httpx
import pytest
import yaml
from prometheus_client.parser import text_string_to_metric_families

from quicksilver.server.admin_app import build_admin_app
from tests.deploy.promql import Selector, selectors
from tests.server.conftest import Served, chat, served

__all__ = ["served"]

DEPLOY = Path(__file__).parents[2] / "deploy"
# Added by Prometheus at each scrape.
SCRAPE_LABELS = {"job", "instance"}


def panel_expressions() -> dict[str, str]:
    panels = json.loads((DEPLOY / "grafana/quicksilver.json").read_text())["panels"]
    return {f"{panel['title']} {target['refId']}": target["expr"] for panel in panels for target in panel["targets"]}


def alert_expressions() -> dict[str, str]:
    groups = yaml.safe_load((DEPLOY / "alerts.yaml").read_text())["groups"]
    return {rule["alert"]: rule["expr"] for group in groups for rule in group["rules"]}


EXPRESSIONS = {**panel_expressions(), **alert_expressions()}


async def live_series(served: Served) -> dict[str, set[str]]:
    """Sample names with their labels, from `/metrics` after an answer and a refusal."""
    assert (await served.post("/v1/chat/completions", chat())).status_code == 200
    assert (await served.post("/v1/chat/completions", chat(n=0))).status_code == 400
    transport = httpx.ASGITransport(app=build_admin_app(served.services))
    async with httpx.AsyncClient(transport=transport, base_url="http://localhost") as client:
        text = (await client.get("/metrics")).text
    labels: dict[str, set[str]] = defaultdict(set)
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            labels[sample.name] |= set(sample.labels)
    return {**labels, "up": set()}


async def test_every_expression_names_live_series_and_their_labels(served: Served) -> None:
    series = await live_series(served)
    wrong = []
    for name, expression in EXPRESSIONS.items():
        found = selectors(expression)
        assert found, name
        for selector in found:
            unknown = selector.labels - series.get(selector.metric, set()) - SCRAPE_LABELS
            if selector.metric not in series or unknown:
                wrong.append(f"{name}: {selector.metric} {sorted(unknown)}")
    assert wrong == []


def test_histograms_are_read_by_le() -> None:
    for name, expression in EXPRESSIONS.items():
        for selector in selectors(expression):
            assert selector.metric.endswith("_bucket") == ("le" in selector.labels), name


def test_the_board_has_a_place_for_every_panel() -> None:
    panels = json.loads((DEPLOY / "grafana/quicksilver.json").read_text())["panels"]
    places = [(panel["gridPos"]["x"], panel["gridPos"]["y"]) for panel in panels]
    assert len(set(places)) == len(panels) == len({panel["id"] for panel in panels}) >= 16
    assert len({panel["title"] for panel in panels}) == len(panels)


def test_selectors_reads_names_labels_and_groupings() -> None:
    expression = 'histogram_quantile(0.95, sum by (le, model) (rate(a_bucket{route=~"/v1/.*",status!="200"}[5m]))) > 2'
    assert selectors(expression) == [Selector("a_bucket", frozenset({"le", "model", "route", "status"}))]
    assert selectors("sum by (x) (a)") == [Selector("a", frozenset({"x"}))]
    assert [found.metric for found in selectors("rate(a[5m]) / on (x) group_left rate(b[5m] offset 1h)")] == ["a", "b"]
    assert selectors('up{job="q"} == 0') == [Selector("up", frozenset({"job"}))]


@pytest.mark.parametrize("expression", ["sum(rate(a[5m])", "a{b='c", "a @@ b"])
def test_selectors_refuses_what_it_cannot_read(expression: str) -> None:
    with pytest.raises(ValueError, match=r"cannot read|not match|is not in list"):
        selectors(expression)
