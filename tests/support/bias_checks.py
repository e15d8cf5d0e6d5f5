"""Biased and banned tokens in the fused head and in rounds, against the plain path. No pytest here: see
`kernel_checks`."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor

from quicksilver.backends.cuda.graphs import GraphLimits, GraphRunner
from quicksilver.backends.cuda.inflight import Flight
from quicksilver.backends.cuda.kernels.head import BLOCK_V, Bias, Draws, HeadRows, HeadSpace, propose_rows, read_results
from quicksilver.backends.cuda.kernels.linears import Norm, Weight
from quicksilver.backends.cuda.logit_bias import NUM_BIAS, BiasTable, HeadKind, bias_of
from quicksilver.backends.cuda.rounds import RoundGraph, RoundRunner, RoundShape, one_forward
from quicksilver.core import DecodeParams, DecoderName, DecoderParams, Delta, Request, Usage
from quicksilver.diffusion.logit_processing import LogitContext, process_logits
from quicksilver.diffusion.sample import Proposal, SampleRows, propose
from quicksilver.engine.engine import Engine
from quicksilver.model.attention import PagedCache
from quicksilver.model.config import ModelConfig
from quicksilver.model.transformer import Transformer
from tests.support.graph_checks import SMALL, SMALL_TRUE, WIDE_PARTS, are_alike, engine_of, model_of
from tests.support.kernel_checks import expect_proposals, here


def biased_params(rng: random.Random, row: int, best: list[int], vocab: int) -> DecodeParams:
    """By row: no bias, the best token banned, a full table of both, a far token lifted, ends of the vocabulary."""
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


def table_of(rows: int, vocab: int) -> BiasTable:
    return BiasTable(rows, -(-vocab // BLOCK_V), BLOCK_V, torch.device(here().device))


def drawn(logits: Tensor, temperature: float) -> tuple[Proposal, Draws | None]:
    """What the sampler reads from adjusted logits, every second row greedy, and how a head is told to draw the same."""
    rows, device = len(logits), logits.device
    heat = torch.full((rows,), temperature, device=device)
    heat[::2] = 0
    seeds, positions = torch.randint(0, 2**40, (2, rows), device=device)
    positions %= 10_000
    ones, zeros = torch.ones(rows, device=device), torch.zeros(rows, device=device)
    wanted = propose(logits, SampleRows(heat, ones, zeros, zeros.long(), seeds, positions, zeros.long()))
    return wanted, Draws(heat, seeds, positions.int(), zeros.int()) if temperature else None


def check_biased_head(seed: int, shape: tuple[int, int], rows: int, temperature: float) -> None:
    """Token, confidence and entropy are those that the sampler reads from adjusted logits, whatever each row's bias."""
    torch.manual_seed(seed)
    place, rng, (vocab, k) = here(), random.Random(seed), shape
    hidden, w, gain = place.normal(rows, k), place.normal(vocab, k) * (3 / k**0.5), place.normal(k)
    wide = hidden.float()
    normed = wide * torch.rsqrt(wide.square().mean(-1, keepdim=True) + 1e-6) * gain.float()
    logits = normed.to(place.dtype).float() @ w.float().T
    table = table_of(rows, vocab)
    for row, best in enumerate(logits.topk(8).indices.tolist()):
        params = biased_params(rng, row, best, vocab)
        process_logits(logits[row : row + 1], LogitContext(params, (), ()))
        table.write(slice(row, row + 1), params)
    table.send()
    wanted, draws = drawn(logits, temperature)
    index = torch.arange(rows, device=place.device).int()
    asked = HeadRows(index, draws, bias=Bias(table.ids, table.values, table.tiles))
    results = propose_rows(hidden, Norm(gain, 1e-6), Weight(w), asked, HeadSpace.allocate(w, rows, place.dtype))
    token_ids = expect_proposals(results, wanted)
    assert not bool(logits.gather(1, token_ids[:, None]).isneginf().any()), "a banned token was proposed"


def check_lone_bias(rows: int) -> None:
    """One entry in the whole batch is found wherever in a tile of the vocabulary it is, and a row that is not finite is
    told whatever is banned."""
    place, vocab, k = here(), 2 * BLOCK_V + 9, 64
    hidden, w = place.normal(rows, k), place.normal(vocab, k)
    hidden[3, 5] = torch.nan
    index, table = torch.arange(rows, device=place.device).int(), table_of(rows, vocab)
    space, norm = HeadSpace.allocate(w, rows, place.dtype), Norm(place.normal(k), 1e-6)
    for token in (0, BLOCK_V - 1, BLOCK_V, 2 * BLOCK_V - 1, vocab - 1):
        table.write(slice(1, 2), DecodeParams(logit_bias={token: 90.0}))
        table.write(slice(3, 4), DecodeParams(banned_ids=(7,)))
        table.send()
        asked = HeadRows(index, bias=Bias(table.ids, table.values, table.tiles))
        token_ids, confidence, _, is_finite = read_results(propose_rows(hidden, norm, Weight(w), asked, space))
        assert int(token_ids[1]) == token
        assert float(confidence[1]) > 0.99
        assert is_finite.tolist() == [row != 3 for row in range(rows)]


@dataclass
class Said:
    """Answers by prompt, and what they cost."""

    answers: list[list[int]]
    usages: dict[str, Usage] = field(default_factory=dict)


def say(engine: Engine, prompts: list[list[int]], wishes: list[DecodeParams]) -> Said:
    """All prompts at once, each as it wishes; fails the check if a request failed."""
    said = Said([[] for _ in prompts])
    for i, (prompt, params) in enumerate(zip(prompts, wishes, strict=True)):
        engine.add(Request(str(i), tuple(prompt), params))
    while engine.has_work:
        for event in engine.step():
            assert isinstance(event, Delta)
            assert event.error is None, event.error
            said.answers[int(event.request_id)] += event.token_ids
            if event.usage is not None:
                said.usages[event.request_id] = event.usage
    return said


class Watched(RoundRunner):
    """Remembers the kinds of head that its rounds had."""

    kinds: set[HeadKind]

    def _land(self, flight: Flight, works):  # type: ignore[no-untyped-def]
        self.kinds.add(flight.kind)
        return super()._land(flight, works)


@dataclass
class Case:
    """A model, prompts, and for every second prompt from the first a bias that changes what it would have said."""

    model: Transformer
    prompts: list[list[int]]
    count: int
    temperature: float
    canvas_len: int
    wishes: list[DecodeParams] = field(default_factory=list)

    def __post_init__(self) -> None:
        plain = DecodeParams(self.count, self.temperature, seed=3)
        self.wishes = [plain] * len(self.prompts)
        for i, text in enumerate(self.say(self.oracle, DecoderName.AR).answers):
            if i % 2 == 0:
                bans, often = tuple(dict.fromkeys(text))[:3], (text[-1] + 1) % self.model.config.vocab_size
                self.wishes[i] = replace(plain, banned_ids=bans, logit_bias={often: 3.0, bans[0]: 9.0})

    @property
    def limits(self) -> GraphLimits:
        return GraphLimits(max_rows=128, max_segments=8, context_len=self.model.config.context_len)

    @property
    def oracle(self) -> Callable[[PagedCache], GraphRunner] | None:
        """The plain path where numbers repeat; on a GPU the same kernels, forward by forward."""
        if here().dtype is torch.float32:
            return None
        return lambda cache: GraphRunner(self.model, cache, 64, self.limits)

    def say(self, make: Callable[[PagedCache], GraphRunner] | None, name: DecoderName) -> Said:
        decoder = DecoderParams(name, self.canvas_len)
        return say(engine_of(self.model, make), self.prompts, [replace(one, decoder=decoder) for one in self.wishes])


def case_of(config: ModelConfig, prompt_lens: list[int], canvas_len: int, count: int, temperature: float) -> Case:
    rng = random.Random(1)
    prompts = [[rng.randrange(config.vocab_size) for _ in range(length)] for length in prompt_lens]
    return Case(model_of(config), prompts, count, temperature, canvas_len)


def check_rounds_with_bias(
    config: ModelConfig, prompt_lens: list[int], shape: RoundShape, count: int, temperature: float
) -> None:
    """Rounds with a biased request, alone or beside one without, say what one causal row at a time says; where numbers
    repeat that is the plain path's text, and it takes as many forwards there: drafts have the bias too."""
    case = case_of(config, prompt_lens, shape.canvas_len, count, temperature)
    wanted = case.say(case.oracle, DecoderName.AR).answers
    runners: list[Watched] = []

    def rounds(cache: PagedCache) -> RoundRunner:
        place = (cache.page_size, here().device, here().dtype, shape.num_verify)
        runner = Watched(case.model, PagedCache.allocate(config, 512, *place), 64, case.limits)
        runner.kinds = set()
        runner.prepare_rounds([shape])
        runners.append(runner)
        return runner

    found = case.say(rounds, DecoderName.VERIFY)
    assert found.answers == wanted
    assert HeadKind(temperature > 0, is_biased=True) in runners[0].kinds, "no biased round ran ahead"
    expect_bias_in_all_proposals(runners[0]._graphs[shape], case.wishes)
    if case.oracle is None and shape.has_halves and not shape.tree_rows:
        plain = case.say(None, DecoderName.VERIFY)
        costs = [[(usage.forwards, usage.accepted) for usage in s.usages.values()] for s in (plain, found)]
        assert costs[0] == costs[1], "drafts differ from the plain path's"
    for text, params in zip(wanted, case.wishes, strict=True):
        assert not set(text) & set(params.banned_ids)


def expect_bias_in_all_proposals(graph: RoundGraph, wishes: list[DecodeParams]) -> None:
    for forward in graph.forwards:
        for b, params in enumerate(wishes):
            for rows in forward.shape.proposals_of(b):
                for ids, values in zip(forward.head.bias.ids.T[rows], forward.head.bias.values.T[rows], strict=True):
                    assert entries(ids, values) == bias_of(params)


def entries(ids: Tensor, values: Tensor) -> dict[int, float]:
    return {token: value for token, value in zip(ids.tolist(), values.tolist(), strict=True) if token >= 0}


def check_full_tables_and_fuller(config: ModelConfig, count: int) -> None:
    """A request with one entry more than a table holds goes the plain way and says the same."""
    case, ran = case_of(config, [6], 1, count, 0.0), list[HeadKind]()

    class Counted(GraphRunner):
        def _propose(self, head, kind):  # type: ignore[no-untyped-def]
            ran.append(kind)
            super()._propose(head, kind)

    texts = []
    for num_entries in (NUM_BIAS, NUM_BIAS + 1):
        bias = dict(case.wishes[0].logit_bias)
        more = (token for token in range(config.vocab_size) if token not in bias_of(case.wishes[0]))
        bias |= {next(more): 0.0 for _ in range(num_entries - len(bias_of(case.wishes[0])))}
        params = replace(case.wishes[0], logit_bias=bias, decoder=DecoderParams(DecoderName.AR))
        engine = engine_of(case.model, lambda cache: Counted(case.model, cache, 64, case.limits))
        ran.clear()
        texts.append(say(engine, case.prompts, [params]).answers)
        assert set(ran) == ({HeadKind(is_biased=True)} if num_entries == NUM_BIAS else set())
    assert texts[0] == texts[1]


def gpu_checks() -> Iterator[tuple[str, Callable[[], None]]]:
    """All checks at sizes for a GPU, by name."""
    yield "head with a lone bias", lambda: check_lone_bias(64)
    for rows, heat in ((16, 0.0), (32, 0.8), (64, 0.8), (256, 0.0)):
        name = f"head with bias rows={rows} temperature={heat}"
        yield name, lambda r=rows, t=heat: check_biased_head(0, (49153, 576), r, t)
    for kind, config in (("whole", SMALL), ("parts", WIDE_PARTS), ("true", SMALL_TRUE)):
        for lens, shape in (
            ([40], RoundShape(1, 1)),
            ([40], RoundShape(1, 16)),
            ([20, 13], RoundShape(2, 16)),
            ([40], RoundShape(1, 16, tree_rows=32)),
            ([40], one_forward(1, 8)),
        ):
            if not are_alike(config, shape):
                continue
            for temperature in (0.0, 0.8):
                yield (
                    f"rounds with bias {kind} {shape} of {lens} at temperature {temperature} equal AR bit for bit",
                    lambda c=config, n=lens, s=shape, t=temperature: check_rounds_with_bias(c, n, s, 120, t),
                )
