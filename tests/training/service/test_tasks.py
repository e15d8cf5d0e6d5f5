"""Losses of the methods against plain computations, and the division into steps."""

from __future__ import annotations

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from quicksilver.training.network import Network
from quicksilver.training.pack import Document
from quicksilver.training.pairs import dpo_loss
from quicksilver.training.service import tasks
from quicksilver.training.service.examples import Example
from quicksilver.training.service.tasks import (
    DpoTask,
    JobTask,
    KtoJobTask,
    StepPlan,
    SupervisedTask,
    make_task,
    packed,
    parts_of,
    shared_len,
    targets,
)
from quicksilver.training.toy_task import tiny_model


@pytest.fixture
def network() -> Network:
    return Network(tiny_model())


def document(*ids: int, prompt_len: int = 2) -> Document:
    is_answer = np.arange(len(ids)) >= prompt_len
    return Document(np.array(ids), is_answer, np.zeros_like(is_answer))


DOCUMENTS = [document(1, 5, 30, 31, 2), document(1, 6, 40, 2), document(1, 7, 50, 51, 52, 2)]


def log_prob(network: Network, doc: Document) -> float:
    """Sum over the answer of a document alone in its row."""
    rows = packed([doc], network.device)
    from quicksilver.training.attention import DocumentAttention

    x = network.embed(rows.batch.token_ids)
    hidden = network.forward(x, rows.batch.positions, DocumentAttention(rows.batch.doc_id))[0]
    logits = F.log_softmax(hidden @ network.head.T, dim=-1)
    ids = doc.token_ids.tolist()
    return float(sum(logits[i - 1, ids[i]] for i in range(1, len(ids)) if doc.is_answer[i]))


def test_every_epoch_has_every_example_once_in_its_own_order() -> None:
    plan = StepPlan(num_examples=11, batch_size=4, num_epochs=2, seed=1)
    assert (plan.steps_per_epoch, plan.num_steps) == (2, 4)
    first, second = ([i for step in steps for i in plan.indices(step)] for steps in ((0, 1), (2, 3)))
    assert sorted(first) == sorted(second) == list(range(11))
    assert first != second
    assert plan.indices(3) == StepPlan(11, 4, 2, 1).indices(3)


@pytest.mark.parametrize(("num_examples", "batch_size"), [(11, 4), (12, 4), (7, 1), (3, 5), (100, 7)])
def test_steps_divide_the_order_of_an_epoch_as_evenly_as_possible(num_examples: int, batch_size: int) -> None:
    plan = StepPlan(num_examples, batch_size, num_epochs=2, seed=9)
    order = np.random.default_rng((9, 1)).permutation(num_examples)
    found = [plan.indices(plan.steps_per_epoch + place) for place in range(plan.steps_per_epoch)]
    assert found == [part.tolist() for part in np.array_split(order, plan.steps_per_epoch)]


def test_targets_stay_inside_their_document() -> None:
    rows = packed(DOCUMENTS, torch.device("cpu"))
    target, number = targets(rows)
    for index, doc in enumerate(DOCUMENTS):
        assert target[number == index].tolist() == doc.token_ids[doc.is_answer].tolist()


def test_a_shared_prefix_is_laid_out_once_in_a_row_and_ends_before_the_answers() -> None:
    docs = [document(1, 8, 9, 20 + i, 30, 31, prompt_len=4) for i in range(3)]
    assert shared_len(docs) == 3
    rows = packed(docs, torch.device("cpu")).batch
    assert rows.token_ids[0, :6].tolist() == [1, 8, 9, 20, 30, 31]
    assert rows.token_ids[0, 6:12].tolist() == [21, 30, 31, 22, 30, 31]
    assert rows.positions[0, :12].tolist() == [0, 1, 2, 3, 4, 5, 3, 4, 5, 3, 4, 5]
    # One prompt with several answers: the token before them is not shared, because its target differs.
    assert shared_len([document(1, 8, 9, 30 + i, prompt_len=3) for i in range(3)]) == 2
    assert shared_len([document(1, 8, 9), document(4, 8, 9)]) == 0
    assert shared_len([document(1, 8, 9, prompt_len=0)] * 2) == 0
    assert shared_len(docs[:1]) == 0


def test_rows_on_a_cpu_have_little_padding() -> None:
    for lengths in ([69] * 12, [100, *[52] * 15]):
        docs = [document(*range(1 + i, 1 + i + length)) for i, length in enumerate(lengths)]
        assert packed(docs, torch.device("cpu")).batch.token_ids.numel() < 1.1 * sum(lengths)


def test_log_probs_equal_those_of_each_document_alone(network: Network) -> None:
    task = SupervisedTask(network, [Example(doc) for doc in DOCUMENTS], StepPlan(3, 3, 1, 0), rank=4)
    found = task.log_probs(DOCUMENTS, None).tolist()
    assert found == pytest.approx([log_prob(network, doc) for doc in DOCUMENTS], rel=1e-4)


def test_a_shared_prefix_leaves_the_gradients_as_they_are(network: Network, monkeypatch: pytest.MonkeyPatch) -> None:
    docs = [document(1, 8, 9, 10, 11, 20 + i, 30 + i, 31, 2, prompt_len=6) for i in range(5)]
    task = SupervisedTask(network, [Example(doc) for doc in docs], StepPlan(5, 5, 1, 0), rank=4)
    torch.manual_seed(0)
    for name, tensor in task.parameters.items():
        if name.endswith("B"):
            torch.nn.init.normal_(tensor, std=0.05)

    def gradients() -> dict[str, torch.Tensor]:
        for tensor in task.parameters.values():
            tensor.grad = None
        task.step(0)
        return {name: tensor.grad for name, tensor in task.parameters.items() if tensor.grad is not None}

    assert shared_len(docs) == 5
    found = gradients()
    monkeypatch.setattr(tasks, "shared_len", lambda documents: 0)
    wanted = gradients()
    assert found.keys() == task.parameters.keys()
    for name, gradient in found.items():
        assert float((gradient - wanted[name]).norm()) < 1e-5 * float(wanted[name].norm()), name


def test_supervised_loss_is_the_mean_over_answer_tokens(network: Network) -> None:
    task = SupervisedTask(network, [Example(doc) for doc in DOCUMENTS], StepPlan(3, 3, 1, 0), rank=4)
    report = task.step(0)
    num = sum(int(doc.is_answer.sum()) for doc in DOCUMENTS)
    assert float(report.loss) == pytest.approx(-sum(log_prob(network, doc) for doc in DOCUMENTS) / num, rel=1e-4)
    assert all(tensor.grad is not None for name, tensor in task.parameters.items() if name.endswith("B"))


def test_dpo_loss_has_known_values() -> None:
    # -log sigmoid(0.1 * 2) = 0.598139, -log sigmoid(0.1 * -1) = 0.744397
    loss, margin = dpo_loss(torch.tensor([1.0, 0.0]), torch.tensor([-1.0, 1.0]), beta=0.1)
    assert float(loss) == pytest.approx((0.598139 + 0.744397) / 2, abs=1e-5)
    assert margin.tolist() == pytest.approx([0.2, -0.1])


def test_preference_training_begins_at_the_base(network: Network) -> None:
    """A new adapter changes nothing, so the log-ratios are zero."""
    pairs = [Example(DOCUMENTS[i], document(1, 5 + i, 60, 2)) for i in range(3)]
    report = DpoTask(network, pairs, StepPlan(3, 3, 1, 0), rank=4, beta=0.1).step(0)
    assert float(report.loss) == pytest.approx(0.693147, abs=1e-5)
    judged = [Example(doc, label=index != 1) for index, doc in enumerate(DOCUMENTS)]
    task = KtoJobTask(network, judged, StepPlan(3, 3, 1, 0), rank=4, beta=0.1)
    weights = (2 * task.weights.accepted + task.weights.rejected) / 3
    assert float(task.step(0).loss) == pytest.approx(0.5 * weights, abs=1e-5)


@pytest.mark.parametrize("method", ["dpo", "kto"])
def test_preferences_are_learned(network: Network, method: str) -> None:
    good, bad = DOCUMENTS, [document(1, 5 + i, 60 + i, 2) for i in range(3)]
    plan = StepPlan(6 if method == "kto" else 3, 3, 8, 0)
    task: DpoTask | KtoJobTask
    if method == "dpo":
        task = DpoTask(network, [Example(a, b) for a, b in zip(good, bad, strict=True)], plan, 4, 0.5)
    else:
        task = KtoJobTask(network, [*map(Example, good), *(Example(doc, label=False) for doc in bad)], plan, 4, 0.5)
    adamw = torch.optim.AdamW(task.parameters.values(), lr=2e-2)
    for step in range(plan.num_steps):
        task.step(step)
        adamw.step()
        adamw.zero_grad()
    with torch.no_grad():
        assert float(task.log_ratio(good).mean()) > 0.5
        assert float(task.log_ratio(bad).mean()) < -0.5


def test_parts_of_a_step_have_a_bounded_number_of_tokens(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tasks, "MAX_PART_TOKENS", 10)
    lengths = [4, 6, 1, 30, 5, 5, 5]
    assert [lengths[span] for span in parts_of(lengths)] == [[4, 6], [1], [30], [5, 5], [5]]


def test_weights_of_rows_count_in_the_balance_of_both_labels(network: Network) -> None:
    """Ignored suggestions are rejected with a weight below 1."""
    judged = [Example(DOCUMENTS[0]), *(Example(doc, label=False, weight=0.25) for doc in DOCUMENTS[1:])]
    task = KtoJobTask(network, judged, StepPlan(3, 3, 1, 0), rank=4, beta=0.1)
    assert (task.weights.accepted, task.weights.rejected) == pytest.approx((1.0, 1.5))


@pytest.mark.parametrize("method", ["supervised", "dpo", "kto"])
def test_a_step_in_parts_has_the_loss_and_the_gradient_of_the_whole(
    network: Network, method: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    bad = [document(1, 5 + i, 60 + i, 2) for i in range(3)]
    pairs = [
        Example(a, b if method == "dpo" else None, label=i != 1, weight=1 - 0.2 * i)
        for i, (a, b) in enumerate(zip(DOCUMENTS, bad, strict=True))
    ]
    largest: list[int] = []
    lay_out = tasks.packed

    def counted(documents: list[Document], device: torch.device) -> tasks.PackedDocuments:
        largest[-1] = max(largest[-1], sum(len(each.token_ids) for each in documents))
        return lay_out(documents, device)

    def run(most: int) -> tuple[JobTask, dict[str, float]]:
        monkeypatch.setattr(tasks, "MAX_PART_TOKENS", most)
        task = make_task(method, network, pairs, StepPlan(3, 3, 1, 0), {"rank": 4, "beta": 0.3})
        with torch.no_grad():
            for index, tensor in enumerate(task.parameters.values()):
                tensor += 0.05 * torch.sin(torch.arange(tensor.numel()) + index).view_as(tensor)
        largest.append(0)
        report = task.step(0)
        scalars = {name: float(value) for name, value in report.scalars.items()}
        return task, {"loss": float(report.loss), **scalars}

    monkeypatch.setattr(tasks, "packed", counted)
    (whole, expected), (parts, found) = run(4096), run(1)
    assert largest[1] < largest[0]
    assert found == pytest.approx(expected, rel=1e-5)
    for name, tensor in whole.parameters.items():
        torch.testing.assert_close(parts.parameters[name].grad, tensor.grad, rtol=1e-4, atol=1e-7)
