"""Checks of grammar bitmasks in the fused head against the eager path. No pytest here: see `kernel_checks`."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from collections.abc import Sequence as Seq
from dataclasses import dataclass, field, replace

import numpy as np
import torch

from quicksilver.backends.base import Outcome
from quicksilver.backends.cuda.backend import CudaBackend
from quicksilver.backends.cuda.buffers import GraphLimits
from quicksilver.backends.cuda.graphs import GraphExecutor
from quicksilver.backends.cuda.inflight import RoundShape
from quicksilver.backends.cuda.kernels.head import (
    BLOCK_V,
    Bias,
    Draws,
    HeadRows,
    HeadWorkspace,
    propose_rows,
    read_results,
)
from quicksilver.backends.cuda.kernels.linears import Norm, Weight
from quicksilver.backends.cuda.kernels.network import MatmulMode
from quicksilver.backends.cuda.logit_bias import MASKED_OPTIONS, SamplingOptions
from quicksilver.backends.torch.backend import TorchBackend
from quicksilver.core import ConstraintSpec, DecodeParams, DecoderName, DecoderParams, Delta, Request
from quicksilver.diffusion.sample import LogitContext, Proposal, process_logits
from quicksilver.model.attention import PagedCache
from quicksilver.model.config import ModelConfig
from quicksilver.model.transformer import Transformer
from tests.support.bias_checks import biased_params, drawn, table_of
from tests.support.graph_checks import NANO_WIDTHS, SMALL, WIDE, engine_of, model_of
from tests.support.kernel_checks import expect_proposals, here
from tests.support.staircase import Staircase


def check_masked_head(seed: int, shape: tuple[int, int], rows: int, temperature: float) -> None:
    """With masks and bias, at any temperature, token, confidence, entropy and is_finite equal the sampler's on adjusted
    logits. Rows allow all tokens, half of them, or a few."""
    torch.manual_seed(seed)
    place, rng, (vocab, k) = here(), random.Random(seed), shape
    hidden, w, gain = place.normal(rows, k), place.normal(vocab, k) * (3 / k**0.5), place.normal(k)
    wide = hidden.float()
    normed = wide * torch.rsqrt(wide.square().mean(-1, keepdim=True) + 1e-6) * gain.float()
    logits = normed.to(place.dtype).float() @ w.float().T
    bits = torch.randint(-(2**31), 2**31, (4, rows, -(-vocab // 32)), device=place.device).int()
    bitmask, table = torch.full_like(bits[0], -1), table_of(rows, vocab)
    bitmask[1::3] = bits[0, 1::3]
    bitmask[2::3] = bits[0, 2::3] & bits[1, 2::3] & bits[2, 2::3] & bits[3, 2::3]
    for row, best in enumerate(logits.topk(8).indices.tolist()):
        params = biased_params(rng, row, best, vocab)
        process_logits(logits[row : row + 1], LogitContext(params, (), (), bitmask=bitmask[row : row + 1]))
        table.write(slice(row, row + 1), params)
    table.send()
    wanted, draws = drawn(logits, temperature)
    head_rows = HeadRows(
        torch.arange(rows, device=place.device).int(), draws, bitmask, Bias(table.ids, table.values, table.tiles)
    )
    results = propose_rows(hidden, Norm(gain, 1e-6), Weight(w), head_rows, HeadWorkspace.allocate(w, rows, place.dtype))
    token_ids = expect_proposals(results, wanted)
    assert bool(wanted.is_finite.all())
    assert not bool(logits.gather(1, token_ids[:, None]).isneginf().any()), "a masked token was proposed"


def check_narrow_masks(rows: int, temperature: float) -> None:
    """A mask that allows one token yields it with probability 1, whatever its bias. Non-finite rows and rows without an
    allowed token are reported."""
    place, vocab, k = here(), 2 * BLOCK_V + 9, 64
    hidden, w = place.normal(rows, k), place.normal(vocab, k)
    hidden[3, 5] = torch.nan
    heat, seeds = torch.full((rows,), temperature, device=place.device), torch.arange(rows, device=place.device)
    draws = Draws(heat, seeds, seeds.int(), seeds.int()) if temperature else None
    table = table_of(rows, vocab)
    only = [(0, 31, 32, BLOCK_V - 1, BLOCK_V, vocab - 1)[row % 6] for row in range(rows)]
    bits = torch.zeros(rows, -(-vocab // 32), dtype=torch.int64)
    for row, token in enumerate(only):
        bits[row, token // 32] = 1 << (token % 32)
        table.write(slice(row, row + 1), DecodeParams(logit_bias={token: -50.0, (token + 1) % vocab: 90.0}))
    table.write(slice(5, 6), DecodeParams(banned_ids=(only[5],)))
    table.send()
    bitmask = torch.where(bits > 2**31 - 1, bits - 2**32, bits).int().to(place.device)
    index = torch.arange(rows, device=place.device).int()
    head_rows = HeadRows(index, draws, bitmask, Bias(table.ids, table.values, table.tiles))
    workspace, norm = HeadWorkspace.allocate(w, rows, place.dtype), Norm(place.normal(k), 1e-6)
    token_ids, confidence, entropy, is_finite = read_results(
        propose_rows(hidden, norm, Weight(w), head_rows, workspace)
    )
    fine = [row for row in range(rows) if row not in (3, 5)]
    assert is_finite.tolist() == [row in fine for row in range(rows)]
    assert [token_ids.tolist()[row] for row in fine] == [only[row] for row in fine]
    assert torch.allclose(confidence[fine], torch.ones(len(fine), device=place.device))
    assert torch.allclose(entropy[fine], torch.zeros(len(fine), device=place.device), atol=1e-5)


class WatchedEager(TorchBackend):
    """Records the requests that the eager path served."""

    def __init__(self, model: Transformer, cache: PagedCache, logit_rows: int) -> None:
        super().__init__(model, cache, logit_rows)
        self.served: set[str] = set()

    def answer(self, works, hidden):  # type: ignore[no-untyped-def]
        self.served |= {work.sequence.id for work in works}
        return super().answer(works, hidden)


class WatchedExecutor(GraphExecutor):
    """Records the sampling options of the heads that ran outside rounds."""

    seen_options: set[SamplingOptions]

    def replay(self, key, work):  # type: ignore[no-untyped-def]
        self.seen_options |= {key[2]} if key[0] == "head" else set()
        super().replay(key, work)


class Watched(CudaBackend):
    """In fp32, compares every outcome with the eager backend's."""

    # Recorded, not raised: the engine would run each request again on its own.
    faults: list[str]

    def run(self, works):  # type: ignore[no-untyped-def]
        found = super().run(works)
        if here().dtype is torch.float32 and self._in_flight is None:
            for one, wanted in zip(found, TorchBackend(self.model, self.cache, 64).run(works), strict=True):
                self.faults += differences(one, wanted)
        return found

    def _deliver(self, in_flight, works):  # type: ignore[no-untyped-def]
        if any(work.sequence.constraint is not None for work in works):
            self.faults.append("a round with a grammar")
        return super()._deliver(in_flight, works)


def differences(found: Outcome | None, wanted: Outcome | None) -> list[str]:
    """The fields in which two outcomes differ."""
    if found is None or wanted is None:
        return [] if found is wanted else ["presence"]
    names = [name for name in Proposal.__slots__ if not _is_same(found.proposal, wanted.proposal, name)]
    return names if len(found.logprobs) == len(wanted.logprobs) else [*names, "logprobs"]


def _is_same(a: Proposal, b: Proposal, name: str) -> bool:
    found, wanted = getattr(a, name), getattr(b, name)
    if found is None or wanted is None:
        return found is wanted
    return bool(np.allclose(found, wanted, rtol=1e-5, atol=1e-4))


class Broken(Staircase):
    """A grammar that raises after two tokens."""

    def write_masks(self, ahead: Seq[int], out: memoryview) -> int:
        num_rows = super().write_masks(ahead, out)
        if len(self.taken) >= 2:
            raise RuntimeError("broken")
        return num_rows


def grammar_of(length: int, stop: int) -> Staircase:
    return Staircase(length, stop) if length > 0 else Broken(-length, stop)


@dataclass
class Case:
    """A model and prompts that run at once. Prompts with a length have a Staircase grammar of that many tokens; a
    negative length is a broken grammar."""

    model: Transformer
    prompts: list[list[int]]
    params_of: list[DecodeParams]
    lengths: list[int]
    mode: MatmulMode = MatmulMode.FASTEST
    backend: Watched | None = field(default=None, init=False)
    executor: WatchedExecutor | None = field(default=None, init=False)

    def generate(self, name: DecoderName, fits_rounds: bool = False, only: Seq[int] = ()) -> list[list[int]]:
        """Answers per prompt, restricted to `only`; fails if a request failed."""
        engine = engine_of(self.model, None if fits_rounds else self._watched)
        stop = self.model.config.vocab_size - 1
        engine.constraints = lambda spec: grammar_of(int(spec.grammar), stop)
        answers: list[list[int]] = [[] for _ in self.prompts]
        for i in only or range(len(self.prompts)):
            params = replace(self.params_of[i], stop_ids=(stop,), decoder=DecoderParams(name, 4))
            spec = ConstraintSpec(str(self.lengths[i])) if self.lengths[i] else None
            engine.add(Request(str(i), tuple(self.prompts[i]), params, constraint=spec))
        num_steps = 0
        while engine.has_work:
            num_steps += 1
            assert num_steps < 1000, "the grammar accepts no proposal"
            for event in engine.step():
                assert isinstance(event, Delta)
                assert event.error is None or self.lengths[int(event.request_id)] < 0, event.error
                answers[int(event.request_id)] += event.token_ids
        faults = self.backend.faults if self.backend is not None else []
        assert not faults, faults
        return answers

    @property
    def seen_options(self) -> set[SamplingOptions]:
        assert self.executor is not None
        return self.executor.seen_options

    @property
    def served_eagerly(self) -> set[str]:
        assert self.executor is not None
        assert isinstance(self.executor.eager, WatchedEager)
        return self.executor.eager.served

    def _watched(self, cache: PagedCache) -> Watched:
        limits = GraphLimits(128, 8, self.model.config.context_len, matmul_mode=self.mode)
        executor = WatchedExecutor(self.model, cache, 64, limits)
        executor.eager, executor.seen_options = WatchedEager(self.model, cache, 64), set()
        self.backend, self.executor = Watched(executor), executor
        self.backend.prepare_rounds([RoundShape(len(self.prompts), 4)])
        self.backend.faults = []
        executor.prepare([16], [16])
        return self.backend


def case_of(config: ModelConfig, prompt_lens: list[int], params_of: list[DecodeParams], lengths: list[int]) -> Case:
    rng = random.Random(1)
    prompts = [[rng.randrange(config.vocab_size) for _ in range(length)] for length in prompt_lens]
    return Case(model_of(config), prompts, params_of, lengths)


def check_constrained_texts(config: ModelConfig, names: Seq[DecoderName], length: int, temperature: float) -> None:
    """A request with a grammar and bans beside a free one: one fused head serves both, and in fp32 all decoders give
    the eager path's answers. `verify` gives the answer of `ar`."""
    plain = DecodeParams(length + 4, temperature, seed=3)
    banned = replace(plain, banned_ids=(7, 15, 22), logit_bias={14: 2.0, 1: 5.0})
    case = case_of(config, [6, 5], [banned, replace(plain, max_new_tokens=length)], [length, 0])
    answers = {}
    for name in names:
        answers[name] = case.generate(name)
        assert case.backend is not None
        masked = {options for options in case.seen_options if options.is_masked}
        assert masked == {MASKED_OPTIONS[temperature > 0]}, case.seen_options
        assert not case.served_eagerly, "the eager path was used"
        assert len(answers[name][0]) == length
        assert Staircase(length, config.vocab_size - 1).legal_prefix(answers[name][0]) == length
        assert not {7, 15, 22} - {place % 7 + 7 for place in range(5, length, 6)} & set(answers[name][0])
        if here().dtype is torch.float32:
            assert answers[name] == case.generate(name, fits_rounds=True), name
    if DecoderName.AR in answers and DecoderName.VERIFY in answers:
        assert answers[DecoderName.VERIFY] == answers[DecoderName.AR]


def check_rare_options(config: ModelConfig, length: int) -> None:
    """Beside a request with logprobs the others keep the fused head and their answers."""
    plain = DecodeParams(length + 4, seed=3)  # spare tokens, or the grammar would force its shortest text
    params_of = [plain, replace(plain, logprobs=2), replace(plain, max_new_tokens=length, temperature=0.9)]
    case = case_of(config, [6, 5, 7], params_of, [length, length, 0])
    if here().device == "cuda":
        # Answers in company and alone are compared, and the number of rows picks the kernels in the other mode.
        case.mode = MatmulMode.BATCH_INVARIANT
    answers = case.generate(DecoderName.VERIFY)
    assert case.backend is not None
    assert case.served_eagerly == {"1"}, case.served_eagerly
    assert any(options.is_masked for options in case.seen_options)
    if here().dtype is torch.float32:
        assert answers == case.generate(DecoderName.VERIFY, fits_rounds=True)
    else:
        for i in (0, 2):
            assert answers[i] == case.generate(DecoderName.VERIFY, only=[i])[i], "another request changed the answer"


def check_broken_grammar(config: ModelConfig, length: int) -> None:
    """A grammar that raises while the table is written fails its own request; the others give the same answers."""
    plain = DecodeParams(length + 4, seed=3)
    case = case_of(config, [6, 5, 7], [plain, plain, replace(plain, max_new_tokens=length)], [length, -99, 0])
    answers = case.generate(DecoderName.AR)
    assert len(answers[1]) == 2, "the broken grammar did not fail after two tokens"
    assert [answers[0], [], answers[2]] == case.generate(DecoderName.AR, only=[0, 2])


def gpu_checks() -> Iterator[tuple[str, Callable[[], None]]]:
    """All checks at sizes for a GPU, by name."""
    for rows, heat in ((16, 0.0), (16, 0.8), (32, 0.8), (64, 0.0), (64, 0.8), (256, 0.0)):
        name = f"head with masks and bias rows={rows} temperature={heat}"
        yield name, lambda r=rows, t=heat: check_masked_head(0, (49153, 576), r, t)
    for heat in (0.0, 0.8):
        yield f"head with masks of one token, temperature={heat}", lambda t=heat: check_narrow_masks(64, t)
    names = (DecoderName.AR, DecoderName.VERIFY, DecoderName.CONFIDENCE)
    for kind, config in (("small", SMALL), ("wide", WIDE), ("nano", NANO_WIDTHS)):
        for heat in (0.0, 0.8):
            name = f"constrained texts {kind} at temperature {heat}"
            yield name, lambda c=config, t=heat: check_constrained_texts(c, names, 60, t)
        yield f"broken grammar fails its own request {kind}", lambda c=config: check_broken_grammar(c, 20)
        yield f"rare sampling options {kind}", lambda c=config: check_rare_options(c, 60)
