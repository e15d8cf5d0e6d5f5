"""The oracle: every decoder as an uncached loop. No KV, no batch, no pages: each forward recomputes the whole text.

`predict(context, tail)` returns logits (1 + len(tail), vocab) of the last context row and the tail's rows. The engine
must produce exactly what this produces, token for token; read this first to understand what the engine does.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from quicksilver.core import DecodeParams, DecoderName
from quicksilver.diffusion.adjust import Adjustment, adjust
from quicksilver.diffusion.decoder import Tail
from quicksilver.diffusion.decoders import make_decoder, noise_step
from quicksilver.diffusion.edit import left_neighbours
from quicksilver.diffusion.finish import end_early, take
from quicksilver.diffusion.sample import SampleRows, propose

Predict = Callable[[Sequence[int], Tail], Tensor]


def generate(predict: Predict, prompt: Sequence[int], params: DecodeParams) -> list[int]:
    """The answer's tokens, without the stop token."""
    decoder = make_decoder(params.decoder)
    context, answer, canvas = list(prompt), list[int](), None
    while True:
        canvas = canvas or decoder.open(params.max_new_tokens - len(answer))
        tail = decoder.tail(canvas)
        logits = predict(context, tail).float().clone()
        avoid = left_neighbours(tail, context[-1]) if params.decoder.name is DecoderName.EDIT else []
        adjust(logits, Adjustment(params, prompt, answer, tail.known, None, avoid))
        rows = sample_rows(params, len(context), len(logits), noise_step(params.decoder, canvas.step))
        decision = end_early(decoder.decide(canvas, propose(logits, rows)), params.stop_ids)
        canvas = decision.canvas
        tokens, finish = take(decision.commit, params.stop_ids, params.max_new_tokens - len(answer))
        context, answer = context + tokens, answer + tokens
        if finish:
            return answer


def sample_rows(params: DecodeParams, first_position: int, num_rows: int, step: int) -> SampleRows:
    """The settings of one request, repeated for its rows; row i proposes the token at `first_position + i`."""

    def column(value: float, dtype: torch.dtype) -> Tensor:
        return torch.full((num_rows,), value, dtype=dtype)

    return SampleRows(
        column(params.temperature, torch.float32),
        column(params.top_p, torch.float32),
        column(params.min_p, torch.float32),
        column(params.top_k, torch.int64),
        column(params.seed, torch.int64),
        torch.arange(first_position, first_position + num_rows),
        column(step, torch.int64),
    )
