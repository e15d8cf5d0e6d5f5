"""Steps of fine-tuning jobs on a GPU against the same steps on a CPU; skipped without a GPU."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from quicksilver.training.network import Network, as_written
from quicksilver.training.pack import Document
from quicksilver.training.service.examples import Example
from quicksilver.training.service.tasks import StepPlan, make_task
from quicksilver.training.toy_task import tiny_model

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")]


def documents(count: int) -> list[Document]:
    """Of many lengths, so that the rows of each step have another shape."""
    rng = np.random.default_rng(3)
    found = []
    for index in range(count):
        ids = rng.integers(3, 60, size=20 + 17 * index)
        is_answer = np.arange(len(ids)) >= len(ids) // 2
        found.append(Document(ids, is_answer, np.zeros_like(is_answer)))
    return found


def gradient(method: str, device: str) -> tuple[float, torch.Tensor]:
    examples = [Example(each, label=index % 2 == 0) for index, each in enumerate(documents(8))]
    if method == "dpo":
        examples = [
            Example(a.document, rejected=b.document) for a, b in zip(examples[::2], examples[1::2], strict=True)
        ]
    network = Network(tiny_model().to(device).eval(), as_written)
    chosen = {"rank": 4, "beta": 0.1}
    task = make_task(method, network, examples, StepPlan(len(examples), 3, 1, 5), chosen)
    with torch.no_grad():
        for name, tensor in task.parameters.items():
            if name.endswith(".B"):
                tensor.copy_(torch.randn(tensor.shape, generator=torch.Generator().manual_seed(2)) * 0.05)
            else:
                tensor.copy_(torch.randn(tensor.shape, generator=torch.Generator().manual_seed(1)) * 0.05)
    report = task.step(0)
    grads = [tensor.grad.flatten().cpu() for tensor in task.parameters.values() if tensor.grad is not None]
    return float(report.loss), torch.cat(grads)


@pytest.mark.parametrize("method", ["supervised", "dpo", "kto"])
def test_a_step_on_a_gpu_has_the_gradient_of_a_cpu(method: str) -> None:
    loss, wanted = gradient(method, "cpu")
    found_loss, found = gradient(method, "cuda")
    assert found_loss == pytest.approx(loss, rel=1e-3)
    assert float((found - wanted).norm() / wanted.norm()) < 1e-2
