"""Batched greedy answers equal those of the plain decoder, sequence by sequence."""

from __future__ import annotations

import pytest
import torch

from quicksilver.training.answers import AnswerDecoder, Asked
from quicksilver.training.decode import BatchDecoder
from quicksilver.training.network import Network

STOPS = [2, 7]


def _prompts() -> list[list[int]]:
    generator = torch.Generator().manual_seed(2)
    lengths = (1, 3, 9, 14, 5, 2, 30)
    return [torch.randint(8, 96, (length,), generator=generator).tolist() for length in lengths]


def test_answers_equal_those_of_the_plain_decoder(network: Network) -> None:
    asked = [Asked(prompt, 6 + 3 * i) for i, prompt in enumerate(_prompts())]
    found = AnswerDecoder(network, 3, 96, STOPS).answers(asked)
    for ask, answer in zip(asked, found, strict=True):
        plain = BatchDecoder(network, [list(ask.prompt)], ask.max_new_tokens, STOPS).ar()
        assert answer.token_ids == plain.answer(0)


def test_the_log_probability_is_that_of_the_whole_answer(network: Network) -> None:
    prompt = _prompts()[3]
    answer = AnswerDecoder(network, 2, 64, STOPS).answers([Asked(prompt, 5)])[0]
    ids = torch.tensor([[*prompt, *answer.token_ids]])
    from quicksilver.training.attention import DocumentAttention

    hidden = network.forward(
        network.embed(ids), torch.arange(ids.shape[1])[None], DocumentAttention(torch.ones_like(ids))
    )
    logits = network.model.head(hidden[0]).log_softmax(-1)
    wanted = sum(logits[i - 1, int(ids[0, i])] for i in range(len(prompt), ids.shape[1]))
    assert answer.log_prob == pytest.approx(float(wanted), abs=1e-4)


def test_an_answer_ends_where_its_slots_end(network: Network) -> None:
    found = AnswerDecoder(network, 2, 16, []).answers([Asked([9] * 10, 50), Asked([9] * 40, 50), Asked([8] * 3, 2)])
    assert len(found[0].token_ids) == 16 - 9
    assert found[1].token_ids == []
    assert len(found[2].token_ids) == 2
