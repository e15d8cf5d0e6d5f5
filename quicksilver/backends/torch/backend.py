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

from quicksilver.backends.base import AdapterStore, Outcome, PersistentBatch, Sequence, Work
from quicksilver.backends.batch import Batch, build_batch, write_masks
from quicksilver.backends.round_cost import RoundCost
from quicksilver.core import DecoderName, MaskTask, TokenConstraint, TokenLogprob
from quicksilver.diffusion.canvas import step_temperature
from quicksilver.diffusion.decoder import Tail
from quicksilver.diffusion.edit import left_neighbours
from quicksilver.diffusion.sample import (
    LogitContext,
    Proposal,
    SampleRows,
    process_logits,
    propose,
    propose_with_samples,
    sample_rows,
)
from quicksilver.diffusion.verify import WINDOW, lookup
from quicksilver.model.attention import PagedCache
from quicksilver.model.gemma import DiffusionGemma
from quicksilver.model.lowrank import Adapter, LowRank
from quicksilver.model.row_adapters import Pair, RowAdapter, convert
from quicksilver.model.transformer import Transformer


class TorchBackend:
    round_cost: RoundCost | None = None  # set by subclasses that measure their forwards
    persistent: PersistentBatch | None = None
    adapter_store: AdapterStore | None = None

    def __init__(self, model: Transformer, cache: PagedCache, logit_rows: int) -> None:
        self.model = model
        self.cache = cache
        self.logit_rows = logit_rows
        self.device = cache.k.device

    def run(self, works: Seq[Work]) -> list[Outcome | None]:
        """One forward. The result is None for work that proposes nothing yet (a prompt's earlier chunks)."""
        return with_prompt_lookup(works, self.answer(works, self._forward(works)))

    def answer(self, works: Seq[Work], hidden: Tensor) -> list[Outcome | None]:
        """The outcomes of `works`, computed from the hidden states of their proposing rows."""
        outcomes: list[Outcome | None] = []
        for tile in _tiles(works, self.logit_rows):
            num_rows = sum(work.num_proposals for work in tile)
            outcomes += self._read(tile, hidden[:num_rows])
            hidden = hidden[num_rows:]
        return outcomes

    def _forward(self, works: Seq[Work]) -> Tensor:
        """Hidden states of the proposing rows."""
        batch = build_batch(works, self.cache.page_size).to(self.device)
        x = self._embed(batch)
        is_canvas = batch.plan.is_canvas if batch.has_canvas else None
        if isinstance(self.model, DiffusionGemma) and is_canvas is not None:
            x = self.model.condition(x, is_canvas, _soft_embeddings(works, x))
        attend = self.model.attention(batch.plan, self.cache)
        return self.model(x, batch.plan.positions, attend, is_canvas, batch.row_adapters)[batch.proposing]

    @property
    def supports_adapters(self) -> bool:
        return not isinstance(self.model, DiffusionGemma)

    def _embed(self, batch: Batch) -> Tensor:
        return self.model.embed(batch.token_ids, batch.mask_index if batch.has_canvas else None, batch.row_adapters)

    def convert_adapter(self, adapter: Adapter) -> RowAdapter:
        return convert(self.model.config, adapter, self._convert_pair, self.device)

    def _convert_pair(self, pair: LowRank) -> Pair:
        return pair.to(device=self.device, dtype=self.model.dtype)

    def _read(self, tile: Seq[Work], hidden: Tensor) -> list[Outcome | None]:
        if not len(hidden):
            return [None] * len(tile)
        tail = tile[0].tail
        if tail is not None and tail.targets:
            return [self._score(tail, hidden, tile[0].sequence.adapter)]
        logits = self.model.logits(hidden).float()
        parts = _cut(tile)
        for work, rows in parts:
            if work.sequence.adapter is not None:
                work.sequence.adapter.replace_logits(logits[rows], hidden[rows])
        raw = [_raw_logprobs(work, logits[rows]) for work, rows in parts]
        bitmasks = self._bitmasks(tile)
        for work, rows in parts:
            if work.num_proposals:
                process_logits(logits[rows], self._adjustment(work, bitmasks.get(work.sequence)))
        proposal = self._choose(logits, _settings(tile, self.device))
        if isinstance(self.model, DiffusionGemma):
            proposal = replace(proposal, soft=self.model.soft_embedding(logits))
        return [
            Outcome(proposal[rows], _logprobs(log_p, proposal[rows], work)) if work.num_proposals else None
            for (work, rows), log_p in zip(parts, raw, strict=True)
        ]

    def _choose(self, logits: Tensor, rows: SampleRows) -> Proposal:
        has_noise = self.model.config.dialect.noise_vocab > 0
        return (propose_with_samples if has_noise else propose)(logits, rows).to_host()

    def _adjustment(self, work: Work, bitmask: Tensor | None) -> LogitContext:
        sequence, tail = work.sequence, work.tail
        assert tail is not None
        params = sequence.request.params
        avoid = left_neighbours(tail, sequence.tokens[-1]) if params.decoder.name is DecoderName.EDIT else []
        temperature = 1.0
        if params.decoder.name is DecoderName.CANVAS and sequence.canvas is not None:
            temperature = step_temperature(params.decoder, sequence.canvas.step)
        prompt = sequence.request.prompt_ids
        return LogitContext(params, prompt, sequence.generated, tail.known, bitmask, temperature, avoid)

    def _bitmasks(self, works: Seq[Work]) -> dict[Sequence, Tensor]:
        """Bitmasks of legal tokens now and after each known token, (rows, words), of the constrained sequences."""
        num_words = -(-self.model.config.vocab_size // 32)
        tasks, rows = list[MaskTask[TokenConstraint]](), dict[Sequence, np.ndarray]()
        for work in works:
            constraint, tail = work.sequence.constraint, work.tail
            if constraint is not None and tail is not None and work.num_proposals:
                words = rows[work.sequence] = np.zeros((len(tail.known) + 1, num_words), dtype=np.int32)
                tasks.append((constraint, tail.known, words.data))
        written = zip(rows.items(), write_masks(tasks), strict=True)
        return {sequence: torch.from_numpy(words[:num]).to(self.device) for (sequence, words), num in written}

    def _score(self, tail: Tail, hidden: Tensor, adapter: RowAdapter | None) -> Outcome:
        """Logits are computed only for rows that have targets."""
        rows, tokens = torch.tensor(tail.targets, device=self.device).unbind(1)
        needed, index = rows.unique(return_inverse=True)
        found, details = torch.empty(len(rows)), dict[int, TokenLogprob]()
        finite = True
        for start in range(0, len(needed), self.logit_rows):
            part = hidden[needed[start : start + self.logit_rows]]
            logits = self.model.logits(part).float()
            if adapter is not None:
                adapter.replace_logits(logits, part)
            here = ((index >= start) & (index < start + len(logits))).nonzero()[:, 0]
            asked = (index[here] - start, tokens[here])
            if tail.num_top is None:
                found[here.cpu()], is_usable = self._target_logprobs(logits, *asked)
            else:
                log_p = logits.log_softmax(-1)
                found[here.cpu()], is_usable = _read_logprobs(log_p, *asked)
                details |= zip(here.tolist(), _details(log_p[asked[0]], asked[1], tail.num_top), strict=True)
            finite = finite and is_usable
        zeros = np.zeros(1, np.float32)
        proposal = Proposal(np.zeros(1, np.int64), zeros, zeros, np.array([finite]))
        return Outcome(proposal, [], found, tuple(details[i] for i in sorted(details)))

    def _target_logprobs(self, logits: Tensor, rows: Tensor, tokens: Tensor) -> tuple[Tensor, bool]:
        """Log-probabilities of `tokens` in `rows` of the logits, and whether all logits are finite."""
        return _read_logprobs(logits.log_softmax(-1), rows, tokens)


def _read_logprobs(log_p: Tensor, rows: Tensor, tokens: Tensor) -> tuple[Tensor, bool]:
    return log_p[rows, tokens].cpu(), bool(log_p.isfinite().all())


def with_prompt_lookup(works: Seq[Work], outcomes: list[Outcome | None]) -> list[Outcome | None]:
    """Replaces drafted tokens of `verify` by prompt lookup where the text repeats itself; other outcomes stay."""
    return [_looked_up(work, outcome) for work, outcome in zip(works, outcomes, strict=True)]


def _looked_up(work: Work, outcome: Outcome | None) -> Outcome | None:
    tail, sequence = work.tail, work.sequence
    if sequence.request.params.decoder.name is not DecoderName.VERIFY or outcome is None or tail is None:
        return outcome
    if tail.is_causal or tail.targets or not tail.is_masked or not all(tail.is_masked):
        return outcome
    proposed = outcome.proposal.token_ids
    text, first = sequence.tokens[-WINDOW:], int(proposed[0])
    if first not in text:  # so the text does not repeat itself; cheaper than the search
        return outcome
    text.append(first)
    follows = lookup(text, proposed[1:], outcome.proposal.confidence[1:])
    if not len(follows):
        return outcome
    token_ids = np.concatenate((proposed[:1], follows, proposed[1 + len(follows) :]))
    return replace(outcome, proposal=replace(outcome.proposal, token_ids=token_ids))


def _soft_embeddings(works: Seq[Work], x: Tensor) -> Tensor:
    """The soft embeddings of the canvas rows of all works, in order; zeros for a new canvas."""
    tails = [work.tail for work in works if work.tail is not None]
    parts = [x.new_zeros(len(t.token_ids), x.shape[-1]) if t.soft is None else t.soft.to(x) for t in tails]
    return torch.cat(parts)


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
    proposing = [work for work in works if work.num_proposals]
    sequences = [work.sequence for work in proposing]
    params = [sequence.request.params for sequence in sequences]
    counts, positions = [work.num_proposals for work in proposing], [len(sequence.tokens) for sequence in sequences]
    rows = sample_rows(params, positions, counts, [sequence.noise_step for sequence in sequences])
    return SampleRows(*(getattr(rows, name).to(device) for name in SampleRows.__slots__))


def _raw_logprobs(work: Work, logits: Tensor) -> Tensor | None:
    """Log-probabilities before bias, penalties and grammar; None if the request asks for none."""
    if work.sequence.request.params.logprobs is None or not work.num_proposals:
        return None
    return logits.log_softmax(-1)


def _logprobs(log_p: Tensor | None, proposal: Proposal, work: Work) -> list[TokenLogprob]:
    if log_p is None:
        return []
    token_ids = torch.from_numpy(proposal.token_ids).to(log_p.device)
    return _entries(log_p, token_ids, work.sequence.request.params.logprobs or 0)


def _entries(log_p: Tensor, token_ids: Tensor, num_top: int) -> list[TokenLogprob]:
    """One entry per row of `log_p`."""
    chosen = log_p.gather(-1, token_ids[:, None])[:, 0].tolist()
    best = log_p.topk(num_top, dim=-1)
    tops = zip(best.indices.tolist(), best.values.tolist(), strict=True)
    return [
        TokenLogprob(token_id, value, tuple(zip(ids, values, strict=True)))
        for token_id, value, (ids, values) in zip(token_ids.tolist(), chosen, tops, strict=True)
    ]


def _details(log_p: Tensor, token_ids: Tensor, num_top: int) -> list[TokenLogprob]:
    """Entries with the rank of each token: 1 plus the number of likelier tokens."""
    ranks = (log_p > log_p.gather(-1, token_ids[:, None])).sum(-1) + 1
    entries = _entries(log_p, token_ids, num_top)
    return [replace(entry, rank=rank) for entry, rank in zip(entries, ranks.tolist(), strict=True)]
