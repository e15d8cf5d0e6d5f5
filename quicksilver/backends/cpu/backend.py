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
from quicksilver.backends.cpu.quantise import quantise_linear
from quicksilver.backends.torch.backend import TorchBackend
from quicksilver.diffusion.sample import Proposal, ProposalTensors, SampleRows, sample_tokens
from quicksilver.model.attention import PagedCache
from quicksilver.model.lowrank import LowRank, LowRankModules
from quicksilver.model.row_adapters import Pair
from quicksilver.model.transformer import Transformer


class CpuBackend(TorchBackend):
    """The torch backend with a compiled forward and compiled greedy proposals."""

    def __init__(self, model: Transformer, cache: PagedCache, logit_rows: int) -> None:
        super().__init__(model, cache, logit_rows)
        self.network = CompiledNetwork(model)
        # The compiled code has a thread pool of its own. Threads of torch would only take processor time from it.
        torch.set_num_threads(1)

    def _forward(self, works: Seq[Work]) -> Tensor:
        batch = build_batch(works, self.cache.page_size)
        hidden = self.network.hidden(self._embed(batch), batch.plan, self.cache, batch.row_adapters)
        return self.model.norm(hidden[batch.proposing])

    def _convert_pair(self, pair: LowRank) -> Pair:
        return LowRankModules(quantise_linear(pair.A), quantise_linear(pair.B))

    def _choose(self, logits: Tensor, rows: SampleRows) -> Proposal:
        if not logits.is_contiguous():
            return super()._choose(logits, rows)
        greedy = ProposalTensors(*propose_greedy(logits))
        token_ids = sample_tokens(logits, rows, greedy.token_ids)
        # p(sampled) = p(greedy) * exp(logit difference)
        gap = logits.gather(-1, token_ids[:, None]) - logits.gather(-1, greedy.token_ids[:, None])
        return replace(greedy, token_ids=token_ids, confidence=greedy.confidence * gap[:, 0].exp()).to_host()

    def _target_logprobs(self, logits: Tensor, rows: Tensor, tokens: Tensor) -> tuple[Tensor, bool]:
        if not logits.is_contiguous():
            return super()._target_logprobs(logits, rows, tokens)
        greedy = ProposalTensors(*propose_greedy(logits))
        # log p(token) = log p(greedy) + logit difference
        best = greedy.confidence.log() - logits.gather(-1, greedy.token_ids[:, None])[:, 0]
        return logits[rows, tokens] + best[rows], bool(greedy.is_finite.all())
