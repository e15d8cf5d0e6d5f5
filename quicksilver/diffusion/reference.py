"""The reference implementation of decoding, as an uncached loop. Read this first.

It has no KV cache, no batching and no pages: each forward recomputes the whole text. The engine must produce exactly
the same tokens, and the tests compare the two.

One iteration of the loop:

1. If there is no canvas, a new one is created: a few masked positions after the text so far.
2. The decoder returns the *tail*, the rows that follow the context. It is usually the canvas without its last position,
   because the row at position p predicts token p + 1.
3. One forward gives logits for the last context token and for each row of the tail.
4. Logit processing applies bias, penalties and bans, and sampling turns each row of logits into a proposal: a token and
   its confidence.
5. The decoder returns the tokens that are committed (they never change again) and the canvas of the next iteration.
6. Committed tokens are appended to the context. A stop token or the token limit ends the loop.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from torch import Tensor

from quicksilver.core import DecodeParams, DecoderName
from quicksilver.dialect import AUTOREGRESSIVE, Dialect
from quicksilver.diffusion.canvas import step_temperature
from quicksilver.diffusion.decoder import Canvas, Place, Tail, stop_early, truncate
from quicksilver.diffusion.decoders import make_decoder, noise_step
from quicksilver.diffusion.edit import left_neighbours
from quicksilver.diffusion.sample import LogitContext, process_logits, propose, propose_with_samples, sample_rows

# predict(context, tail) -> logits (num_proposals, vocab) of the proposing rows. `context` is the text without the
# tail's fixed tokens.
Predict = Callable[[Sequence[int], Tail], Tensor]
# embed(processed logits) -> soft embeddings, for networks that are conditioned on their last step.
SoftEmbed = Callable[[Tensor], Tensor]


def generate(
    predict: Predict,
    prompt: Sequence[int],
    params: DecodeParams,
    dialect: Dialect = AUTOREGRESSIVE,
    soft_embed: SoftEmbed | None = None,
) -> list[int]:
    """The answer's tokens, without the stop token."""
    decoder = make_decoder(params.decoder, dialect, params.seed)
    context, answer = list(prompt), list[int]()
    canvas: Canvas | None = None
    while True:
        # 1. and 2. A canvas, and the rows that the forward needs for it.
        canvas = canvas or decoder.open(params.max_new_tokens - len(answer), Place(len(context), len(prompt)))
        tail = decoder.tail(canvas, context)

        # 3. One forward over the whole text.
        logits = predict(context[: len(context) - tail.num_fixed], tail).float().clone()

        # 4. One proposal per row. The noise of sampling is keyed by seed, position and step.
        neighbours = left_neighbours(tail, context[-1]) if params.decoder.name is DecoderName.EDIT else []
        temperature = step_temperature(params.decoder, canvas.step) if soft_embed is not None else 1.0
        process_logits(logits, LogitContext(params, prompt, answer, tail.known, None, temperature, neighbours))
        rows = sample_rows([params], [len(context)], [len(logits)], [noise_step(params.decoder, canvas.step)])
        if soft_embed is None:
            proposal = propose(logits, rows).to_host()
        else:
            proposal = propose_with_samples(logits, rows).to_host(soft_embed(logits))

        # 5. What is committed, and what stays on the canvas.
        decision = stop_early(decoder.decide(canvas, proposal), params.stop_ids)
        canvas = decision.canvas

        # 6. Committed tokens are final.
        tokens, finish = truncate(decision.commit, params.stop_ids, params.max_new_tokens - len(answer))
        context, answer = context + tokens, answer + tokens
        if finish:
            return answer
