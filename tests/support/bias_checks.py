"""Checks of logit bias in the fused head and in rounds against the eager path. No pytest here: see `kernel_checks`."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor

from quicksilver.backends.base import Backend
from quicksilver.backends.cuda.backend import CudaBackend
from quicksilver.backends.cuda.buffers import GraphLimits
from quicksilver.backends.cuda.graphs import GraphExecutor
from quicksilver.backends.cuda.inflight import InFlightRounds, RoundShape
from quicksilver.backends.cuda.kernels.head import (
    BLOCK_V,
    WIDE_BLOCK_V,
    Bias,
    Draws,
    HeadRows,
    HeadWorkspace,
    propose_rows,
    read_results,
)
from quicksilver.backends.cuda.kernels.linears import Norm, Weight
from quicksilver.backends.cuda.logit_bias import NUM_BIAS, BiasTable, SamplingOptions, bias_of
from quicksilver.backends.cuda.rounds import RoundGraph
from quicksilver.core import DecodeParams, DecoderName, DecoderParams, Delta, Request, Usage
from quicksilver.diffusion.sample import LogitContext, ProposalTensors, SampleRows, process_logits, propose
from quicksilver.engine.engine import Engine
from quicksilver.model.attention import PagedCache
from quicksilver.model.config import ModelConfig
from quicksilver.model.transformer import Transformer
from tests.support.graph_checks import NANO_WIDTHS, SMALL, WIDE, engine_of, model_of
from tests.support.kernel_checks import expect_proposals, here


def biased_params(rng: random.Random, row: int, best: list[int], vocab: int) -> DecodeParams:
    """By row: no bias, the best token banned, a full table of both, one token raised, first and last token."""
    if row % 5 == 0:
        return DecodeParams()
    if row % 5 == 1:
        return DecodeParams(banned_ids=(best[0],), logit_bias={best[0]: 50.0, best[1]: -1.5})
    if row % 5 == 2:
        others = rng.sample([token for token in range(vocab) if token not in best[:4]], NUM_BIAS - 4)
        return DecodeParams(
            banned_ids=(*best[:4], *others[::2]), logit_bias={token: rng.uniform(-9, 9) for token in others}
        )
    if row % 5 == 3:
        return DecodeParams(logit_bias={rng.randrange(vocab): 12.0})
    return DecodeParams(banned_ids=(0,), logit_bias={vocab - 1: 7.25, best[0]: -100.0})


def table_of(rows: int, vocab: int, block_v: int = BLOCK_V) -> BiasTable:
    return BiasTable(rows, -(-vocab // block_v), block_v, torch.device(here().device))


def drawn(logits: Tensor, temperature: float) -> tuple[ProposalTensors, Draws | None]:
    """The sampler's proposals from adjusted logits, every second row greedy, and the head's parameters for the same."""
    rows, device = len(logits), logits.device
    heat = torch.full((rows,), temperature, device=device)
    heat[::2] = 0
    seeds, positions = torch.randint(0, 2**40, (2, rows), device=device)
    positions %= 10_000
    ones, zeros = torch.ones(rows, device=device), torch.zeros(rows, device=device)
    wanted = propose(logits, SampleRows(heat, ones, zeros, zeros.long(), seeds, positions, zeros.long()))
    return wanted, Draws(heat, seeds, positions.int(), zeros.int()) if temperature else None


def check_biased_head(seed: int, shape: tuple[int, int], rows: int, temperature: float, block_v: int = BLOCK_V) -> None:
    """Token, confidence and entropy equal the sampler's on adjusted logits, for every kind of bias."""
    torch.manual_seed(seed)
    place, rng, (vocab, k) = here(), random.Random(seed), shape
    hidden, w, gain = place.normal(rows, k), place.normal(vocab, k) * (3 / k**0.5), place.normal(k)
    wide = hidden.float()
    normed = wide * torch.rsqrt(wide.square().mean(-1, keepdim=True) + 1e-6) * gain.float()
    logits = normed.to(place.dtype).float() @ w.float().T
    table = table_of(rows, vocab, block_v)
    for row, best in enumerate(logits.topk(8).indices.tolist()):
        params = biased_params(rng, row, best, vocab)
        process_logits(logits[row : row + 1], LogitContext(params, (), ()))
        table.write(slice(row, row + 1), params)
    table.send()
    wanted, draws = drawn(logits, temperature)
    index = torch.arange(rows, device=place.device).int()
    head_rows = HeadRows(index, draws, bias=Bias(table.ids, table.values, table.tiles))
    workspace = HeadWorkspace.allocate(w, rows, place.dtype, block_v)
    results = propose_rows(hidden, Norm(gain, 1e-6), Weight(w), head_rows, workspace)
    token_ids = expect_proposals(results, wanted)
    assert not bool(logits.gather(1, token_ids[:, None]).isneginf().any()), "a banned token was proposed"


def check_single_bias(rows: int) -> None:
    """A single entry is applied at any place of a vocabulary tile, and a non-finite row is reported despite bans."""
    place, vocab, k = here(), 2 * BLOCK_V + 9, 64
    hidden, w = place.normal(rows, k), place.normal(vocab, k)
    hidden[3, 5] = torch.nan
    index, table = torch.arange(rows, device=place.device).int(), table_of(rows, vocab)
    workspace, norm = HeadWorkspace.allocate(w, rows, place.dtype), Norm(place.normal(k), 1e-6)
    for token in (0, BLOCK_V - 1, BLOCK_V, 2 * BLOCK_V - 1, vocab - 1):
        table.write(slice(1, 2), DecodeParams(logit_bias={token: 90.0}))
        table.write(slice(3, 4), DecodeParams(banned_ids=(7,)))
        table.send()
        head_rows = HeadRows(index, bias=Bias(table.ids, table.values, table.tiles))
        token_ids, confidence, _, is_finite = read_results(propose_rows(hidden, norm, Weight(w), head_rows, workspace))
        assert int(token_ids[1]) == token
        assert float(confidence[1]) > 0.99
        assert is_finite.tolist() == [row != 3 for row in range(rows)]


@dataclass
class Answers:
    """Answers per prompt, and their usage."""

    answers: list[list[int]]
    usages: dict[str, Usage] = field(default_factory=dict)


def generate(engine: Engine, prompts: list[list[int]], params_of: list[DecodeParams]) -> Answers:
    """Generate for all prompts at once, each with its parameters; fails if a request failed."""
    found = Answers([[] for _ in prompts])
    for i, (prompt, params) in enumerate(zip(prompts, params_of, strict=True)):
        engine.add(Request(str(i), tuple(prompt), params))
    while engine.has_work:
        for event in engine.step():
            assert isinstance(event, Delta)
            assert event.error is None, event.error
            found.answers[int(event.request_id)] += event.token_ids
            if event.usage is not None:
                found.usages[event.request_id] = event.usage
    return found


class Watched(CudaBackend):
    """Records the sampling options of its rounds."""

    seen_options: set[SamplingOptions]

    def _deliver(self, in_flight: InFlightRounds, works):  # type: ignore[no-untyped-def]
        self.seen_options.add(in_flight.options)
        return super()._deliver(in_flight, works)


@dataclass
class Case:
    """A model and prompts. Every second prompt, from the first, has a bias that changes its answer."""

    model: Transformer
    prompts: list[list[int]]
    count: int
    temperature: float
    canvas_len: int
    params_of: list[DecodeParams] = field(default_factory=list)

    def __post_init__(self) -> None:
        plain = DecodeParams(self.count, self.temperature, seed=3)
        self.params_of = [plain] * len(self.prompts)
        for i, text in enumerate(self.generate(self.oracle, DecoderName.AR).answers):
            if i % 2 == 0:
                bans, raised = tuple(dict.fromkeys(text))[:3], (text[-1] + 1) % self.model.config.vocab_size
                self.params_of[i] = replace(plain, banned_ids=bans, logit_bias={raised: 3.0, bans[0]: 9.0})

    @property
    def limits(self) -> GraphLimits:
        return GraphLimits(max_rows=128, max_segments=8, context_len=self.model.config.context_len)

    @property
    def oracle(self) -> Callable[[PagedCache], GraphExecutor] | None:
        """The eager path if results are reproducible (fp32); on a GPU the same kernels, forward by forward."""
        if here().dtype is torch.float32:
            return None
        return lambda cache: GraphExecutor(self.model, cache, 64, self.limits)

    def generate(self, make: Callable[[PagedCache], Backend] | None, name: DecoderName) -> Answers:
        decoder = DecoderParams(name, self.canvas_len)
        return generate(
            engine_of(self.model, make), self.prompts, [replace(one, decoder=decoder) for one in self.params_of]
        )


def case_of(config: ModelConfig, prompt_lens: list[int], canvas_len: int, count: int, temperature: float) -> Case:
    rng = random.Random(1)
    prompts = [[rng.randrange(config.vocab_size) for _ in range(length)] for length in prompt_lens]
    return Case(model_of(config), prompts, count, temperature, canvas_len)


def check_rounds_with_bias(
    config: ModelConfig, prompt_lens: list[int], shape: RoundShape, count: int, temperature: float
) -> None:
    """Rounds with a biased request, alone or beside one without, emit the tokens of autoregression. In fp32 these are
    the eager path's, with the same number of forwards: drafts have the bias too."""
    case = case_of(config, prompt_lens, shape.canvas_len, count, temperature)
    wanted = case.generate(case.oracle, DecoderName.AR).answers
    backends: list[Watched] = []

    def rounds(cache: PagedCache) -> CudaBackend:
        place = (cache.page_size, here().device, here().dtype, shape.num_verify)
        backend = Watched(GraphExecutor(case.model, PagedCache.allocate(config, 512, *place), 64, case.limits))
        backend.seen_options = set()
        backend.prepare_rounds([shape])
        backends.append(backend)
        return backend

    found = case.generate(rounds, DecoderName.VERIFY)
    assert found.answers == wanted
    assert SamplingOptions(temperature > 0, is_biased=True) in backends[0].seen_options, "no biased round ran ahead"
    expect_bias_in_all_proposals(backends[0].rounds[shape], case.params_of)
    if case.oracle is None and shape.has_two_forwards and not shape.tree_rows:
        plain = case.generate(None, DecoderName.VERIFY)
        costs = [[(usage.forwards, usage.accepted) for usage in s.usages.values()] for s in (plain, found)]
        assert costs[0] == costs[1], "drafts differ from the eager path's"
    for text, params in zip(wanted, case.params_of, strict=True):
        assert not set(text) & set(params.banned_ids)


def expect_bias_in_all_proposals(graph: RoundGraph, params_of: list[DecodeParams]) -> None:
    for forward in graph.forwards:
        for b, params in enumerate(params_of):
            rows = forward.shape.rows_of(b)
            for ids, values in zip(forward.head.bias.ids.T[rows], forward.head.bias.values.T[rows], strict=True):
                assert entries(ids, values) == bias_of(params)


def entries(ids: Tensor, values: Tensor) -> dict[int, float]:
    return {token: value for token, value in zip(ids.tolist(), values.tolist(), strict=True) if token >= 0}


def check_bias_beyond_table(config: ModelConfig, count: int) -> None:
    """A request with one entry more than the table holds takes the eager path and gives the same answer."""
    case, ran = case_of(config, [6], 1, count, 0.0), list[SamplingOptions]()

    class Counted(GraphExecutor):
        def run_head(self, head, options):  # type: ignore[no-untyped-def]
            ran.append(options)
            super().run_head(head, options)

    texts = []
    for num_entries in (NUM_BIAS, NUM_BIAS + 1):
        bias = dict(case.params_of[0].logit_bias)
        more = (token for token in range(config.vocab_size) if token not in bias_of(case.params_of[0]))
        bias |= {next(more): 0.0 for _ in range(num_entries - len(bias_of(case.params_of[0])))}
        params = replace(case.params_of[0], logit_bias=bias, decoder=DecoderParams(DecoderName.AR))
        engine = engine_of(case.model, lambda cache: Counted(case.model, cache, 64, case.limits))
        ran.clear()
        texts.append(generate(engine, case.prompts, [params]).answers)
        assert set(ran) == ({SamplingOptions(is_biased=True)} if num_entries == NUM_BIAS else set())
    assert texts[0] == texts[1]


def gpu_checks() -> Iterator[tuple[str, Callable[[], None]]]:
    """All checks at sizes for a GPU, by name."""
    yield "head with a single bias entry", lambda: check_single_bias(64)
    for rows, heat in ((16, 0.0), (32, 0.8), (64, 0.8), (256, 0.0)):
        name = f"head with bias rows={rows} temperature={heat}"
        yield name, lambda r=rows, t=heat: check_biased_head(0, (49153, 576), r, t)
    for rows, heat in ((128, 0.8), (256, 0.0)):
        name = f"head with bias and wide tiles rows={rows} temperature={heat}"
        yield name, lambda r=rows, t=heat: check_biased_head(0, (49153, 576), r, t, WIDE_BLOCK_V)
    for kind, config in (("small", SMALL), ("wide", WIDE), ("nano", NANO_WIDTHS)):
        for lens, shape in (
            ([40], RoundShape(1, 1)),
            ([40], RoundShape(1, 16)),
            ([20, 13], RoundShape(2, 16)),
            ([40], RoundShape(1, 16, tree_rows=32)),
        ):
            for temperature in (0.0, 0.8):
                yield (
                    f"rounds with bias {kind} {shape} of {lens} at temperature {temperature} equal AR",
                    lambda c=config, n=lens, s=shape, t=temperature: check_rounds_with_bias(c, n, s, 120, t),
                )
