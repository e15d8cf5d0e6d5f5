"""The eager torch backend: runs on any device and is the reference for the others.

Logits are computed only for proposing rows, `logit_rows` of them at a time.
"""

from __future__ import annotations

from collections.abc import Iterator
from collections.abc import Sequence as Seq
from dataclasses import replace
from itertools import accumulate

import numpy as np
import torch
from torch import Tensor

from quicksilver.backends.base import Outcome, Work
from quicksilver.backends.batch import build_batch
from quicksilver.backends.round_cost import RoundCost
from quicksilver.backends.sequence import Sequence
from quicksilver.core import DecoderName, TokenLogprob
from quicksilver.diffusion.decoder import Tail
from quicksilver.diffusion.decoders import noise_step
from quicksilver.diffusion.edit import left_neighbours
from quicksilver.diffusion.logit_processing import LogitContext, process_logits
from quicksilver.diffusion.prompt_lookup import WINDOW, lookup
from quicksilver.diffusion.reference import sample_rows
from quicksilver.diffusion.sample import Proposal, SampleRows, propose
from quicksilver.model.attention import PagedCache, SdpaAttend
from quicksilver.model.transformer import Transformer


class TorchBackend:
    round_cost: RoundCost | None = None  # set by subclasses that measure their forwards

    def __init__(self, model: Transformer, cache: PagedCache, logit_rows: int) -> None:
        self.model = model
        self.cache = cache
        self.logit_rows = logit_rows
        self.device = cache.k.device

    def run(self, works: Seq[Work]) -> list[Outcome | None]:
        """One forward. The result is None for work that proposes nothing yet (a prompt's earlier chunks)."""
        return with_prompt_lookup(works, self.answer(works, self._forward(works)))

    def answer(self, works: Seq[Work], hidden: Tensor) -> list[Outcome | None]:
        """What the hidden states of their proposing rows say to `works`."""
        outcomes: list[Outcome | None] = []
        for tile in _tiles(works, self.logit_rows):
            num_rows = sum(work.num_proposals for work in tile)
            outcomes += self._read(tile, hidden[:num_rows])
            hidden = hidden[num_rows:]
        return outcomes

    def _forward(self, works: Seq[Work]) -> Tensor:
        """Hidden states of the proposing rows."""
        batch = build_batch(works, self.cache.page_size).to(self.device)
        x = self.model.embed(batch.token_ids, batch.mask_index if batch.has_canvas else None)
        attend = SdpaAttend(batch.plan, self.cache)
        is_canvas = batch.plan.is_canvas if batch.has_canvas else None
        return self.model(x, batch.plan.positions, attend, is_canvas)[batch.proposing]

    def _read(self, tile: Seq[Work], hidden: Tensor) -> list[Outcome | None]:
        if not len(hidden):
            return [None] * len(tile)
        tail = tile[0].tail
        if tail is not None and tail.targets:
            return [self._score(tail, hidden)]
        logits = self.model.logits(hidden).float()
        parts = _cut(tile)
        raw = [_raw_logprobs(work, logits[rows]) for work, rows in parts]
        for work, rows in parts:
            if work.num_proposals:
                process_logits(logits[rows], self._adjustment(work))
        proposal = self._choose(logits, _settings(tile, self.device))
        return [
            Outcome(proposal[rows], _logprobs(log_p, proposal[rows], work)) if work.num_proposals else None
            for (work, rows), log_p in zip(parts, raw, strict=True)
        ]

    def _choose(self, logits: Tensor, rows: SampleRows) -> Proposal:
        return propose(logits, rows).cpu()

    def _adjustment(self, work: Work) -> LogitContext:
        sequence, tail = work.sequence, work.tail
        assert tail is not None
        params = sequence.request.params
        avoid = left_neighbours(tail, sequence.tokens[-1]) if params.decoder.name is DecoderName.EDIT else []
        bitmask = self._bitmask(sequence, tail.known)
        return LogitContext(params, sequence.request.prompt_ids, sequence.generated, tail.known, bitmask, avoid)

    def _bitmask(self, sequence: Sequence, known: Seq[int]) -> Tensor | None:
        """Bitmasks of legal tokens now and after each known token, (rows, words)."""
        if sequence.constraint is None:
            return None
        words = np.zeros((len(known) + 1, -(-self.model.config.vocab_size // 32)), dtype=np.int32)
        num_rows = sequence.constraint.write_masks(known, words.data)
        return torch.from_numpy(words[:num_rows]).to(self.device)

    def _score(self, tail: Tail, hidden: Tensor) -> Outcome:
        rows, tokens = torch.tensor(tail.targets, device=self.device).unbind(1)
        found = torch.empty(len(rows))
        finite = True
        for start in range(0, len(hidden), self.logit_rows):
            log_p = self.model.logits(hidden[start : start + self.logit_rows]).float().log_softmax(-1)
            here = ((rows >= start) & (rows < start + len(log_p))).nonzero()[:, 0]
            found[here.cpu()] = log_p[rows[here] - start, tokens[here]].cpu()
            finite = finite and bool(log_p.isfinite().all())
        token_ids = torch.zeros(1, dtype=torch.int64)
        proposal = Proposal(token_ids, torch.ones(1), torch.zeros(1), torch.tensor([finite]))
        return Outcome(proposal, [], found)


def with_prompt_lookup(works: Seq[Work], outcomes: list[Outcome | None]) -> list[Outcome | None]:
    """Replaces drafted tokens of `verify` by prompt lookup where the text repeats itself; other outcomes stay."""
    return [_looked_up(work, outcome) for work, outcome in zip(works, outcomes, strict=True)]


def _looked_up(work: Work, outcome: Outcome | None) -> Outcome | None:
    tail, sequence = work.tail, work.sequence
    if outcome is None or tail is None or tail.is_causal or not all(tail.is_masked) or not tail.is_masked:
        return outcome
    if tail.targets or sequence.request.params.decoder.name is not DecoderName.VERIFY:
        return outcome
    proposed = outcome.proposal.token_ids
    text = [*sequence.tokens[-WINDOW:], int(proposed[0])]
    follows = lookup(text, proposed[1:], outcome.proposal.confidence[1:])
    if not len(follows):
        return outcome
    token_ids = torch.cat((proposed[:1], follows, proposed[1 + len(follows) :]))
    return replace(outcome, proposal=replace(outcome.proposal, token_ids=token_ids))


def _tiles(works: Seq[Work], logit_rows: int) -> Iterator[list[Work]]:
    """Groups works whose proposals fit `logit_rows`. Scoring, which may have more, gets a group of its own."""
    tile, num_rows = list[Work](), 0
    for work in works:
        is_alone = work.tail is not None and bool(work.tail.targets)
        if tile and (is_alone or num_rows + work.num_proposals > logit_rows):
            yield tile
            tile, num_rows = [], 0
        tile.append(work)
        num_rows += work.num_proposals
        if is_alone:
            yield tile
            tile, num_rows = [], 0
    if tile:
        yield tile


def _cut(works: Seq[Work]) -> list[tuple[Work, slice]]:
    """Each work with the slice of its proposals."""
    ends = list(accumulate(work.num_proposals for work in works))
    return [(work, slice(end - work.num_proposals, end)) for work, end in zip(works, ends, strict=True)]


def _settings(works: Seq[Work], device: torch.device) -> SampleRows:
    rows = [_sample_rows(work) for work in works if work.num_proposals]
    return SampleRows(*(torch.cat([getattr(r, name) for r in rows]).to(device) for name in SampleRows.__slots__))


def _sample_rows(work: Work) -> SampleRows:
    sequence, params = work.sequence, work.sequence.request.params
    assert sequence.canvas is not None
    return sample_rows(params, work.end, work.num_proposals, noise_step(params.decoder, sequence.canvas.step))


def _raw_logprobs(work: Work, logits: Tensor) -> Tensor | None:
    """Log-probabilities before bias, penalties and grammar; None if the request asks for none."""
    if work.sequence.request.params.logprobs is None or not work.num_proposals:
        return None
    return logits.log_softmax(-1)


def _logprobs(log_p: Tensor | None, proposal: Proposal, work: Work) -> list[TokenLogprob]:
    if log_p is None:
        return []
    count = work.sequence.request.params.logprobs or 0
    chosen = log_p.gather(-1, proposal.token_ids.to(log_p.device)[:, None])[:, 0].tolist()
    best = log_p.topk(count, dim=-1)
    tops = zip(best.indices.tolist(), best.values.tolist(), strict=True)
    return [
        TokenLogprob(token_id, value, tuple(zip(ids, values, strict=True)))
        for token_id, value, (ids, values) in zip(proposal.token_ids.tolist(), chosen, tops, strict=True)
    ]
