from __future__ import annotations

import torch
import torch.nn.functional as F

from quicksilver.training.loss import answer_loss, draft_loss, loss_and_hits, rows_with_loss, token_log_probs


def drawn(rows: int = 10, dim: int = 6, vocab: int = 13) -> tuple[torch.Tensor, ...]:
    torch.manual_seed(1)
    hidden = torch.randn(rows, dim, requires_grad=True)
    head = torch.randn(vocab, dim, requires_grad=True)
    weight = torch.rand(rows) * (torch.arange(rows) % 3 > 0)
    return hidden, head, torch.randint(0, vocab, (rows,)), weight


def test_answer_loss_equals_plain_cross_entropy_with_its_gradients() -> None:
    hidden, head, target, weight = drawn()
    rows = torch.tensor([2, 5, 11])
    loss = answer_loss(hidden, head, target, weight, rows, chunk_len=4)
    loss.backward()
    got, got_head = hidden.grad, head.grad
    hidden.grad = head.grad = None
    plain = (F.cross_entropy(hidden @ head.T, target, reduction="none") * weight).sum() / weight.sum()
    plain.backward()
    assert torch.allclose(loss, plain, atol=1e-6)
    assert got is not None
    assert got_head is not None
    assert torch.allclose(got, hidden.grad, atol=1e-6)  # type: ignore[arg-type]
    # Of the head, only the trained rows receive their gradient.
    assert torch.allclose(got_head[rows], head.grad[rows], atol=1e-6)  # type: ignore[index]
    others = [i for i in range(13) if i not in rows.tolist()]
    assert torch.equal(got_head[others], torch.zeros_like(got_head[others]))


def test_draft_loss_equals_plain_kl_to_the_cooled_teacher() -> None:
    hidden, head, _, weight = drawn()
    teacher = torch.randn(10, 6)
    result = draft_loss(hidden, teacher, head.detach(), weight, temperature=0.6, chunk_len=4)
    result.loss.backward()
    got = hidden.grad
    hidden.grad = None
    wanted = (teacher @ head.detach().T / 0.6).softmax(-1)
    kl = F.kl_div((hidden @ head.detach().T).log_softmax(-1), wanted, reduction="none").sum(-1)
    plain = (kl * weight).sum() / weight.sum()
    plain.backward()
    assert torch.allclose(result.loss, plain, atol=1e-6)
    assert torch.allclose(got, hidden.grad, atol=1e-6)  # type: ignore[arg-type]
    agrees = (hidden @ head.T).argmax(-1) == (teacher @ head.T).argmax(-1)
    assert torch.equal(result.agrees, agrees)


def test_rows_with_loss_come_first_and_fill_whole_chunks() -> None:
    rows = rows_with_loss(torch.tensor([0.0, 1.0, 0.0, 0.5, 0.0, 0.2]), chunk_len=2, is_padded=True)
    assert rows.tolist() == [1, 3, 5, 0]


def test_rows_without_loss_are_left_out_on_a_cpu() -> None:
    assert rows_with_loss(torch.tensor([0.0, 1.0, 0.0, 0.5, 0.0, 0.2]), chunk_len=2).tolist() == [1, 3, 5]
    assert len(rows_with_loss(torch.zeros(4), chunk_len=2)) == 1


def test_a_measured_loss_equals_that_of_training_and_counts_right_rows() -> None:
    hidden, head, target, weight = drawn(rows=11)
    nothing = torch.empty(0, dtype=torch.long)
    likeliest = (hidden @ head.T).argmax(-1)
    target[:6] = likeliest[:6]
    trained = loss_and_hits(hidden, head, target, weight, nothing, chunk_len=4)
    with torch.no_grad():
        measured = loss_and_hits(hidden, head, target, weight, nothing, chunk_len=4)
    assert torch.allclose(trained[0], measured[0], atol=1e-6)
    wanted = int(((likeliest == target) & (weight > 0)).sum())
    assert int(trained[1]) == int(measured[1]) == wanted >= 4


def test_token_log_probs_equal_a_plain_log_softmax_with_its_gradients() -> None:
    hidden, head, target, weight = drawn()
    rows = torch.tensor([2, 5, 11])
    found = token_log_probs(hidden, head, target, rows, chunk_len=4)
    (found * weight).sum().backward()
    got, got_head = hidden.grad, head.grad
    hidden.grad = head.grad = None
    plain = (hidden @ head.T).log_softmax(-1).gather(1, target[:, None])[:, 0]
    (plain * weight).sum().backward()
    assert torch.allclose(found, plain, atol=1e-6)
    assert torch.allclose(got, hidden.grad, atol=1e-6)  # type: ignore[arg-type]
    assert torch.allclose(got_head[rows], head.grad[rows], atol=1e-6)  # type: ignore[index]
