"""Diffusion dialects on captured graphs: the same proposals and texts as the eager path."""

from __future__ import annotations

import pytest
import torch

from tests.support.triton_interpreter import refusal

if (reason := refusal()) is not None:
    pytest.skip(reason, allow_module_level=True)

from dataclasses import replace

from quicksilver.backends.cuda.kernels import weights
from quicksilver.model.adapters import attach_canvas
from tests.support.dialect_graph_checks import ON_GRAPHS, check_dialect, dialect_on_graphs
from tests.support.dialects import output_adapter, tiny_dialect
from tests.support.graph_checks import TINIEST, model_of

pytestmark = [
    pytest.mark.filterwarnings("ignore:Conversion of an array:DeprecationWarning"),
    pytest.mark.filterwarnings("ignore::RuntimeWarning"),
]


@pytest.mark.parametrize("name", ON_GRAPHS)
def test_a_dialect_on_graphs_equals_the_eager_path(name: str) -> None:
    with torch.inference_mode():
        check_dialect(name, TINIEST, 9)


def test_dense_families_with_a_cached_context_are_accepted() -> None:
    assert {"sdar", "fast-dllm-v2"} <= set(ON_GRAPHS)
    for name in ON_GRAPHS:
        assert weights.refusal(dialect_on_graphs(name, TINIEST).half()) is None, name


def test_a_context_that_is_computed_anew_and_a_partial_adapter_are_refused() -> None:
    full = replace(TINIEST, dialect=tiny_dialect("dream", TINIEST.vocab_size), family="dream")
    reason = weights.refusal(model_of(full, has_adapter=False).half())
    assert reason is not None
    assert "dream" in reason
    model = dialect_on_graphs("sdar", TINIEST).half()
    attach_canvas(model, output_adapter(model).half())
    assert weights.refusal(model) == "the canvas adapter does not have all linears of a layer"
