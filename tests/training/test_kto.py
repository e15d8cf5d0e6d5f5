"""KTO: pinned losses, weights, fixed batches, and that training separates accepted from rejected proposals."""

from __future__ import annotations

import io
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from quicksilver.errors import InvalidRequest
from quicksilver.training.journal import Journal
from quicksilver.training.kto import KtoTask, Weights, balanced_weights, fixed_batches, kto_loss
from quicksilver.training.loop import Loop
from quicksilver.training.network import Network
from quicksilver.training.proposals import Proposal
from quicksilver.training.recipe import Kto, Optim

SPEC = Kto(rank=4, row_len=48, rows_per_batch=3, kl_rows=1, head_chunk=32, optim=Optim(max_steps=12, warmup_steps=1))


def proposals(count: int = 12) -> list[Proposal]:
    """Prompts of 5 to 7 tokens with answers of 4; every second one is accepted."""
    torch.manual_seed(3)
    made = []
    for number in range(count):
        prompt = torch.randint(20, 90, (5 + number % 3,)).tolist()
        answer = [*torch.randint(20, 90, (3,)).tolist(), 2]
        made.append(Proposal(prompt, answer, "next", is_shown=True, is_accepted=number % 2 == 0))
    return made


def started(network: Network, spec: Kto = SPEC, count: int = 12) -> KtoTask:
    task = KtoTask(network, proposals(count), spec, [3, 4])
    task.begin({name: tensor.detach().clone() for name, tensor in task.parameters.items()})
    return task


def test_loss_equals_numbers_worked_out_by_hand() -> None:
    log_ratio = torch.tensor([2.0, -1.0, 0.5, 4.0])
    is_accepted = torch.tensor([True, True, False, False])
    # 1 - sigmoid(0.1 * (r - 1)) for the accepted and 1 - sigmoid(0.1 * (1 - r)) for the rejected:
    # 0.475021, 0.549834, 0.487503, 0.574443.
    loss = kto_loss(log_ratio, is_accepted, torch.tensor(1.0), 0.1, Weights(1.0, 1.0))
    assert loss.item() == pytest.approx(0.521700, abs=1e-6)
    weighed = kto_loss(log_ratio, is_accepted, torch.tensor(1.0), 0.1, Weights(2.0, 1.0))
    assert weighed.item() == pytest.approx(0.777914, abs=1e-6)
    # Without divergence: 0.450166, 0.524979, 0.512497, 0.598688.
    unpaired = kto_loss(log_ratio, is_accepted, torch.tensor(0.0), 0.1, Weights(1.0, 1.0))
    assert unpaired.item() == pytest.approx(0.521583, abs=1e-6)


def test_loss_is_one_half_where_the_policy_is_the_reference(network: Network) -> None:
    report = started(network).step(0)
    assert report.loss.item() == pytest.approx(0.5, abs=1e-6)
    assert report.scalars["divergence"].item() == pytest.approx(0.0, abs=1e-6)


def test_weights_bring_the_totals_within_their_bounds() -> None:
    assert balanced_weights(100, 400) == Weights(4.0, 1.0)
    assert balanced_weights(400, 100) == Weights(1.0, 3.0)
    assert balanced_weights(120, 100) == Weights(1.0, 1.0)
    with pytest.raises(InvalidRequest):
        balanced_weights(10, 0)


def test_log_probs_equal_a_plain_computation_for_each_proposal(network: Network) -> None:
    task = started(network)
    batch = next(fixed_batches(proposals(), SPEC.row_len, SPEC.rows_per_batch, SPEC.kl_rows))
    found = task.log_probs(batch.proposals)
    for number, proposal in enumerate(proposals()[: len(batch.numbers)]):
        ids = torch.tensor([[*proposal.prompt, *proposal.answer]])
        positions = torch.arange(ids.shape[1])
        logits = network.model.head(_hidden(network, ids, positions)[0]).log_softmax(-1)
        begin = len(proposal.prompt)
        wanted = sum(logits[i - 1, int(ids[0, i])] for i in range(begin, ids.shape[1]))
        assert found[number].item() == pytest.approx(float(wanted), abs=1e-4)


def _hidden(network: Network, ids: torch.Tensor, positions: torch.Tensor) -> torch.Tensor:
    from quicksilver.training.attention import DocumentAttention

    return network.forward(network.embed(ids), positions[None], DocumentAttention(torch.ones_like(ids)))


def test_mismatched_rows_pair_a_prompt_with_the_next_proposal() -> None:
    made = proposals()
    batch = next(fixed_batches(made, SPEC.row_len, SPEC.rows_per_batch, SPEC.kl_rows))
    row = batch.mismatched.rows.token_ids[0].tolist()
    first = [*made[0].prompt, *made[1].answer]
    assert row[: len(first)] == first
    assert batch.mismatched.example[0, len(made[0].prompt)] == 0
    assert batch.mismatched.example[0, 0] == -1


def test_batches_hold_whole_proposals_in_order_and_no_proposal_twice() -> None:
    numbers = [batch.numbers.tolist() for batch in fixed_batches(proposals(60), 48, 3, 1)]
    flat = [number for part in numbers for number in part]
    assert len(numbers) > 2
    assert flat == list(range(len(flat)))


def test_a_proposal_longer_than_a_row_is_refused() -> None:
    with pytest.raises(InvalidRequest, match="do not hold a proposal"):
        list(fixed_batches([replace(proposals()[0], prompt=[5] * 60)], 48, 3, 1))


@pytest.mark.parametrize("loss", ["kto", "apo_zero_unpaired"])
def test_training_raises_accepted_and_lowers_rejected(network: Network, tmp_path: Path, loss: str) -> None:
    optim = Optim(lr=2e-2, max_steps=12, warmup_steps=1)
    task = started(network, replace(SPEC, loss=loss, optim=optim))  # type: ignore[arg-type]
    Loop(task, optim, tmp_path, Journal(tmp_path, "kto", io.StringIO())).run()
    report = task.step(0)
    assert report.scalars["accepted"].item() > 0.5
    assert report.scalars["rejected"].item() < -0.5
    assert report.loss.item() < 0.45
