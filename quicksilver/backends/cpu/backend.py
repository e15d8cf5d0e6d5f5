"""`CpuBackend`: forwards of an int8 model in one compiled call each. Implements `backends.base.Backend`."""

from __future__ import annotations

from collections.abc import Sequence as Seq
from dataclasses import replace

import torch
from torch import Tensor

from quicksilver.backends.base import Work
from quicksilver.backends.batch import build_batch
from quicksilver.backends.cpu.greedy import propose_greedy
from quicksilver.backends.cpu.network import CompiledNetwork
from quicksilver.backends.torch.backend import TorchBackend
from quicksilver.diffusion.sample import Proposal, SampleRows, sample_tokens
from quicksilver.model.attention import PagedCache
from quicksilver.model.transformer import Transformer


class CpuBackend(TorchBackend):
    """The torch backend with a compiled forward and compiled greedy proposals."""

    def __init__(self, model: Transformer, cache: PagedCache, logit_rows: int) -> None:
        super().__init__(model, cache, logit_rows)
        self.network = CompiledNetwork(model)
        # The thread pool of the compiled code has the threads. Torch's own would spin beside them.
        torch.set_num_threads(1)

    def _forward(self, works: Seq[Work]) -> Tensor:
        batch = build_batch(works, self.cache.page_size)
        x = self.model.embed(batch.token_ids, batch.mask_index if batch.has_canvas else None)
        return self.model.norm(self.network.hidden(x, batch.plan, self.cache)[batch.proposing])

    def _choose(self, logits: Tensor, rows: SampleRows) -> Proposal:
        if not logits.is_contiguous():
            return super()._choose(logits, rows)
        greedy = Proposal(*propose_greedy(logits))
        token_ids = sample_tokens(logits, rows, greedy.token_ids)
        # p(sampled) = p(greedy) * exp(logit difference)
        gap = logits.gather(-1, token_ids[:, None]) - logits.gather(-1, greedy.token_ids[:, None])
        return replace(greedy, token_ids=token_ids, confidence=greedy.confidence * gap[:, 0].exp())
