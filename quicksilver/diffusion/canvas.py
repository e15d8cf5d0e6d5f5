"""The `canvas` decoder: random tokens become text in steps of falling temperature (DiffusionGemma).

A canvas begins as uniformly random tokens. Each step proposes all its positions. Of the sampled tokens those of least
entropy are accepted, while the entropies before them sum to at most `entropy_bound`; all other positions become random
again, accepted ones of earlier steps included. The distributions of a step are also an input of the next one, as *soft
embeddings*. A canvas ends when its likeliest tokens did not change and their mean entropy is below `stop_entropy`, or
after `steps` steps. Then the likeliest tokens are committed, all at once.

The request's temperature applies to the sampled tokens, in addition to that of the step; 0 takes the likeliest tokens.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt
import torch

from quicksilver.core import DecoderParams
from quicksilver.dialect import Dialect
from quicksilver.diffusion import unmask
from quicksilver.diffusion.decoder import START, Canvas, Decision, Place, Tail
from quicksilver.diffusion.sample import Proposal, random_tokens


@dataclass(frozen=True, slots=True)
class CanvasDecoder:
    params: DecoderParams
    dialect: Dialect
    seed: int = 0

    def open(self, max_tokens: int, place: Place = START) -> Canvas:
        """Always a whole canvas: the number of positions is part of what the network was trained on."""
        noise = self._noise(place.num_tokens, self.params.canvas_len, step=0)
        return replace(Canvas.blank(len(noise)), token_ids=noise, noisy_ids=noise, start=place.num_tokens)

    def tail(self, canvas: Canvas, tokens: Sequence[int] = ()) -> Tail:
        assert canvas.noisy_ids is not None
        ids = tuple(canvas.noisy_ids.tolist())
        return Tail(ids, (True,) * len(ids), proposing=(1, 1 + len(ids)), num_known=0, soft=canvas.soft)

    def decide(self, canvas: Canvas, proposal: Proposal) -> Decision:
        assert proposal.sampled_ids is not None
        best, step = proposal.token_ids, canvas.step + 1
        is_stable = canvas.step > 0 and np.array_equal(best, canvas.token_ids)
        if step >= self.params.steps or (is_stable and float(proposal.entropy.mean()) < self.params.stop_entropy):
            return Decision(best.tolist())
        everywhere = np.ones_like(canvas.is_masked)
        accepted = unmask.entropy_bound(proposal.entropy, everywhere, self.params.entropy_bound)
        noise = self._noise(canvas.start, len(best), step)
        after = replace(
            canvas,
            token_ids=best,
            is_masked=~accepted,
            confidence=proposal.confidence,
            step=step,
            noisy_ids=np.where(accepted, proposal.sampled_ids, noise),
            soft=proposal.soft,
        )
        return Decision([], after)

    def advance(self, canvas: Canvas, count: int) -> Canvas | None:
        """The canvas after its first `count` tokens were committed: random tokens enter at its end. None if all of its
        tokens were committed."""
        assert canvas.noisy_ids is not None
        if count >= len(canvas.token_ids):
            return None
        entering = self._noise(canvas.start + len(canvas.token_ids), count, canvas.step)
        soft, fresh = canvas.soft, Canvas.blank(count)
        return replace(
            canvas,
            token_ids=np.concatenate((canvas.token_ids[count:], entering)),
            is_masked=np.concatenate((canvas.is_masked[count:], fresh.is_masked)),
            confidence=np.concatenate((canvas.confidence[count:], fresh.confidence)),
            noisy_ids=np.concatenate((canvas.noisy_ids[count:], entering)),
            soft=None if soft is None else torch.cat((soft[count:], torch.zeros_like(soft[:count]))),
            start=canvas.start + count,
        )

    def _noise(self, start: int, count: int, step: int) -> npt.NDArray[np.int64]:
        return random_tokens(self.seed, torch.arange(start, start + count), step, self.dialect.noise_vocab).numpy()


def step_temperature(params: DecoderParams, step: int) -> float:
    """The temperature of a step: `first_temperature` in the first one, and close to `last_temperature` in the last."""
    remaining = max(params.steps - step, 1) / params.steps
    return params.last_temperature + (params.first_temperature - params.last_temperature) * remaining
