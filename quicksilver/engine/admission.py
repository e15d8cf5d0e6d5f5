"""Which requests the engine accepts, and in which order accepted requests start.

A request that can never finish, or has numbers that the engine cannot honour, is refused; the refusal names the field
and says what to change. A request that passes fits an empty engine, also a score request. `TenantLoad` refuses the
requests of a tenant that has much work open while other tenants are active.

Accepted requests wait in `WaitQueue`. Interactive requests come before batch requests. While both wait, every
`BATCH_EVERY`-th admission is a batch request, so that batches progress under any load. Within a class, the tenant comes
first that has been served the fewest tokens among those with open requests; within a tenant, requests are in order of
arrival. When a tenant becomes active, its count is raised to that of the least served active tenant, so idle time earns
no credit, and lowered to at most `MAX_DEBT` above it, so earlier work does not delay it for long.
"""

from __future__ import annotations

import math
import time
from collections import Counter, OrderedDict, deque
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import replace
from itertools import chain, islice, zip_longest

from quicksilver.backends.base import Sequence
from quicksilver.core import DecodeParams, DecoderName, DecoderParams, EngineInfo, Request, ScoreRequest
from quicksilver.dialect import AUTOREGRESSIVE, Dialect
from quicksilver.diffusion.score import Scorer
from quicksilver.engine.config import EngineConfig
from quicksilver.errors import ContextTooLong, EngineUnavailable, InvalidRequest

# A tenant is active while its requests run, and for this long after it sent one.
ACTIVE_S = 10.0
# Seconds after which a refused tenant may try again.
RETRY_AFTER_S = 5.0
# Candidates for one admission: a request that does not fit now lets the next ones pass.
LOOK_AHEAD = 16
BATCH_EVERY = 16
MAX_DEBT = 65_536
# Longest time over which the rate of admissions is measured; after it, the first half is left out.
MEASURED_S = 30.0
# Seconds between two searches for requests that wait too long.
CHECK_S = 0.1


def check_request(request: Request, info: EngineInfo, dialect: Dialect = AUTOREGRESSIVE) -> None:
    params = request.params
    _check_decoder(params.decoder.name, info)
    _check_ids(request.prompt_ids, info.vocab_size)
    _check_ids(tuple(params.logit_bias), info.vocab_size, "logit_bias")
    _check_numbers(params)
    _check_canvas(params.decoder.canvas_len, info)
    if request.resume is not None:
        _check_ids(request.resume.token_ids, info.vocab_size, "resume")
    _check_context(len(request.prompt_ids), params.max_new_tokens, info)
    if dialect.keeps_kv:
        _check_pages(len(request.prompt_ids) + params.max_new_tokens, params.decoder.canvas_len, info)


def in_dialect(request: Request, dialect: Dialect) -> Request:
    """The request as a checkpoint of this dialect must decode it: the decoder of the dialect if none was chosen, its
    stop tokens unless the request has none (`ignore_eos`), and no mask token in the answer."""
    if dialect == AUTOREGRESSIVE:
        return request
    params = request.params
    decoder = dialect.default if params.decoder == DecoderParams() else params.decoder
    banned = params.banned_ids if dialect.mask_id is None else (*params.banned_ids, dialect.mask_id)
    stop_ids = (*params.stop_ids, *dialect.stop_ids) if params.stop_ids else ()
    return replace(request, params=replace(params, decoder=decoder, banned_ids=banned, stop_ids=stop_ids))


def _check_decoder(name: DecoderName, info: EngineInfo) -> None:
    if name not in info.decoders:
        known = ", ".join(info.decoders)
        raise InvalidRequest(f"decoder {name} is not available for {info.family}: use {known}", param="decoder")


def check_score(request: ScoreRequest, info: EngineInfo, config: EngineConfig) -> None:
    """The longest continuation must fit the context, and all together the KV memory and the row limit."""
    _check_likelihood(info)
    _check_ids(request.prompt_ids, info.vocab_size)
    if not request.continuations or not all(request.continuations):
        raise InvalidRequest("every continuation needs at least one token", param="continuations")
    for continuation in request.continuations:
        _check_ids(continuation, info.vocab_size, "continuations")
    lengths = [len(continuation) for continuation in request.continuations]
    _check_fits(len(request.prompt_ids), max(lengths), info)
    _check_score_rows(len(request.prompt_ids), sum(lengths), info, config)
    if request.next_tokens:
        _check_next(request, config.score_pass_rows, info.vocab_size)


def _check_next(request: ScoreRequest, max_rows: int, vocab_size: int) -> None:
    if len(request.next_tokens) != len(request.continuations) or not all(request.next_tokens):
        raise InvalidRequest("next_tokens: every continuation needs at least one token after it", param="next_tokens")
    for tokens in request.next_tokens:
        _check_ids(tokens, vocab_size, "next_tokens")
    longest = max(map(len, request.continuations))
    if longest > max_rows:
        raise InvalidRequest(
            f"a continuation has {longest} tokens, and at most {max_rows} are scored in one forward; make it part of "
            "the prompt",
            param="continuations",
        )


def _check_likelihood(info: EngineInfo) -> None:
    if DecoderName.AR not in info.decoders:
        raise InvalidRequest(f"{info.family} has no autoregressive likelihood: it cannot score text", param="model")


def check_scorer(request: ScoreRequest, scorer: Scorer, info: EngineInfo, config: EngineConfig) -> None:
    _check_likelihood(info)
    _check_ids(request.prompt_ids, info.vocab_size)
    num_rows = sum(len(one.tail.token_ids) + 1 for one in scorer.passes)
    _check_fits(len(request.prompt_ids), max(len(one.tail.token_ids) for one in scorer.passes), info)
    _check_score_rows(len(request.prompt_ids), num_rows, info, config)


def _check_score_rows(num_prompt: int, num_scored: int, info: EngineInfo, config: EngineConfig) -> None:
    limit = min(config.max_score_rows, info.num_pages * info.page_size - num_prompt)
    if num_scored > limit:
        raise InvalidRequest(
            f"the continuations have {num_scored} tokens together, and at most {limit} can be scored after a prompt of "
            f"{num_prompt} tokens; send fewer or shorter ones",
            param="continuations",
        )


def _check_ids(ids: tuple[int, ...], vocab_size: int, param: str = "prompt") -> None:
    if param == "prompt" and not ids:
        raise InvalidRequest("the prompt is empty", param=param)
    if ids and not 0 <= min(ids) <= max(ids) < vocab_size:
        raise InvalidRequest(f"token ids must lie in 0..{vocab_size - 1}", param=param)


def _check_numbers(params: DecodeParams) -> None:
    bounds = {
        "temperature": (0, 10), "top_p": (0, 1), "min_p": (0, 1), "top_k": (0, math.inf),
        "presence_penalty": (-10, 10), "frequency_penalty": (-10, 10), "repetition_penalty": (0.01, 100),
        "seed": (-(2**63), 2**63 - 1), "max_new_tokens": (1, math.inf), "logprobs": (0, math.inf),
    }  # fmt: skip
    of_decoder = {
        "threshold": (0, 1), "edit_threshold": (0, 1), "steps": (1, math.inf), "factor": (0, math.inf),
        "entropy_bound": (0, math.inf), "edit_passes": (0, math.inf), "stutter_penalty": (0, math.inf),
        "first_temperature": (0.01, 10), "last_temperature": (0.01, 10), "stop_entropy": (0, math.inf),
    }  # fmt: skip
    _check_bounds(params, bounds)
    _check_bounds(params.decoder, of_decoder)
    if not all(math.isfinite(value) for value in params.logit_bias.values()):
        raise InvalidRequest("logit_bias values must be finite", param="logit_bias")


def _check_bounds(record: object, bounds: Mapping[str, tuple[float, float]]) -> None:
    """Raises InvalidRequest for a field of `record` outside its bounds. A field that is None is not checked."""
    for name, (low, high) in bounds.items():
        value = getattr(record, name)
        if value is None:
            continue
        if not isinstance(value, int | float):
            raise InvalidRequest(f"{name} must be a number, not {value!r}", param=name)
        if math.isnan(value) or not low <= value <= high or value == math.inf:
            allowed = f"at least {low}" if high == math.inf else f"between {low} and {high}"
            raise InvalidRequest(f"{name} must be {allowed}", param=name)


def _check_canvas(canvas_len: int, info: EngineInfo) -> None:
    if not 1 <= canvas_len <= info.max_canvas_len:
        raise InvalidRequest(f"canvas_len must be between 1 and {info.max_canvas_len}", param="canvas_len")


def _check_fits(num_prompt: int, num_new: int, info: EngineInfo) -> None:
    _check_context(num_prompt, num_new, info)
    _check_pages(num_prompt + num_new, 0, info)


def _check_context(num_prompt: int, num_new: int, info: EngineInfo) -> None:
    if num_prompt + num_new > info.context_len:
        raise ContextTooLong(
            f"{num_prompt} prompt tokens and {num_new} new ones exceed the context of {info.context_len}; "
            "shorten the prompt or lower max_tokens",
            param="messages",
        )


def _check_pages(num_tokens: int, canvas_len: int, info: EngineInfo) -> None:
    if num_tokens + canvas_len > info.num_pages * info.page_size:
        raise ContextTooLong(
            f"{num_tokens} tokens exceed the KV memory of {info.num_pages * info.page_size}; "
            "start the engine with more KV memory",
            param="messages",
        )


class ActiveTenants:
    """The two tenants that were last active, and when."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._newest: OrderedDict[str, float] = OrderedDict()

    def note(self, tenant: str) -> None:
        self._newest[tenant] = self._clock()
        self._newest.move_to_end(tenant)
        if len(self._newest) > 2:
            self._newest.popitem(last=False)

    def has_others(self, tenant: str) -> bool:
        """Whether another tenant is active."""
        now = self._clock()
        return any(other != tenant and now - at < ACTIVE_S for other, at in self._newest.items())

    @property
    def are_several(self) -> bool:
        now = self._clock()
        return len(self._newest) > 1 and all(now - at < ACTIVE_S for at in self._newest.values())


def open_rows(sequence: Sequence) -> int:
    """Rows of the prompt, and of the continuations of a scoring request, that are not computed yet."""
    rows = max(len(sequence.tokens) - sequence.kv_len - 1, 0)
    if isinstance(sequence.decoder, Scorer):
        num_done = sequence.canvas.step if sequence.canvas is not None else 0
        rows += sum(len(one.tail.token_ids) for one in sequence.decoder.passes[num_done:])
    return rows


class TenantLoad:
    """Refuses the requests of a tenant that has much work open while other tenants are active.

    Tenants are admitted in turn, so the work of one delays the others little. It delays the tenant's own requests,
    which would wait for minutes on a slow device; a refusal with a retry delay is the better answer. A tenant that is
    alone is never refused.
    """

    def __init__(self, max_rows: int, tenants: ActiveTenants) -> None:
        self._max_rows, self._tenants = max_rows, tenants

    def check(self, tenant: str, sequences: Iterable[Sequence]) -> None:
        """Raises EngineUnavailable if `tenant` has too many rows open among `sequences` and is not alone."""
        if not (self._max_rows and self._tenants.has_others(tenant)):
            return
        if sum(open_rows(one) for one in sequences if one.request.tenant == tenant) > self._max_rows:
            raise EngineUnavailable(
                "the open requests of this project fill the engine; retry shortly", retry_after_s=RETRY_AFTER_S
            )


_Queues = dict[str, deque[Sequence]]


class WaitQueue:
    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        # Interactive and batch requests (index `Request.is_batch`), by tenant.
        self._queues: tuple[_Queues, _Queues] = ({}, {})
        # Preempted requests, by the same index. They are admitted before the others of their class.
        self._preempted: tuple[deque[Sequence], deque[Sequence]] = (deque(), deque())
        self._served: dict[str, float] = {}
        self._num_open: Counter[str] = Counter()
        self._num_waiting = 0
        self._num_since_batch = 0
        self._next_check = 0.0
        # Since when requests wait without a break, and how many were admitted since then.
        self._backlog_began = 0.0
        self._num_admitted = 0.0

    def __len__(self) -> int:
        return self._num_waiting

    def __iter__(self) -> Iterator[Sequence]:
        for preempted, queues in zip(self._preempted, self._queues, strict=True):
            yield from chain(preempted, *queues.values())

    @property
    def has_interactive(self) -> bool:
        return bool(self._queues[False] or self._preempted[False])

    def add(self, sequence: Sequence) -> None:
        """A request that has not run yet."""
        request = sequence.request
        if request.start_within_s and request.resume is None:
            sequence.start_by = self._clock() + request.start_within_s
        self._enter(request.tenant)
        self._count_one()
        self._queues[request.is_batch].setdefault(request.tenant, deque()).append(sequence)

    def put_back(self, sequence: Sequence) -> None:
        """A request that was preempted."""
        self._count_one()
        self._preempted[sequence.request.is_batch].appendleft(sequence)

    def admit(self, sequence: Sequence, num_rows: int) -> None:
        """Takes out a request that starts now and has `num_rows` rows without cached KV."""
        self._take_out(sequence)
        self.charge(sequence.request.tenant, num_rows)
        self._num_admitted += 1
        self._num_since_batch = 0 if sequence.request.is_batch else self._num_since_batch + 1

    def drop(self, sequence: Sequence) -> None:
        """Takes out a request that ends while it waits."""
        self._take_out(sequence)
        self.leave(sequence.request.tenant)

    def charge(self, tenant: str, num_tokens: int) -> None:
        self._served[tenant] += num_tokens

    def leave(self, tenant: str) -> None:
        """One request of the tenant has ended."""
        self._num_open[tenant] -= 1
        if self._num_open[tenant] <= 0:
            del self._num_open[tenant]
        if not self._num_open:
            self._served.clear()

    def candidates(self, excluded: Collection[Sequence] = ()) -> Iterator[Sequence]:
        """The first request of every tenant, then the second of every tenant, and so on, at most `LOOK_AHEAD`, without
        those in `excluded`."""
        is_batch_first = self._num_since_batch >= BATCH_EVERY - 1
        both = chain(self._in_turn(is_batch_first, excluded), self._in_turn(not is_batch_first, excluded))
        return islice(both, LOOK_AHEAD)

    def _in_turn(self, is_batch: bool, excluded: Collection[Sequence]) -> Iterator[Sequence]:
        def admissible(queue: Iterable[Sequence]) -> Iterator[Sequence]:
            return (sequence for sequence in queue if sequence not in excluded)

        queues = self._queues[is_batch]
        tenants = sorted(queues, key=lambda tenant: self._served[tenant])
        by_tenant = (islice(admissible(queues[tenant]), LOOK_AHEAD) for tenant in tenants)
        by_place = chain.from_iterable(zip_longest(*by_tenant))
        preempted = admissible(self._preempted[is_batch])
        return chain(preempted, (sequence for sequence in by_place if sequence is not None))

    # Start estimates

    def start_s(self, tenant: str) -> float:
        """Seconds until a new interactive request of the tenant would start, from the rate of admissions since the
        queue was last empty; 0 if nothing waits."""
        queues = self._queues[False]
        if not queues:
            return 0.0
        num_own = len(queues.get(tenant, ()))
        num_ahead = sum(min(len(queue), num_own + 1) for name, queue in queues.items() if name != tenant) + num_own
        elapsed_s = self._elapsed_s()
        return num_ahead * elapsed_s / (self._num_admitted + 1)

    def overdue(self) -> list[Sequence]:
        """Requests that have not run although their time limit is over. Searched every `CHECK_S` seconds."""
        now = self._clock()
        if now < self._next_check:
            return []
        self._next_check = now + CHECK_S
        return [one for one in self if not one.has_run and one.start_by and now > one.start_by]

    def _elapsed_s(self) -> float:
        elapsed_s = self._clock() - self._backlog_began
        if elapsed_s > MEASURED_S:
            self._backlog_began += elapsed_s / 2
            self._num_admitted /= 2
            elapsed_s /= 2
        return elapsed_s

    def _count_one(self) -> None:
        if not self._num_waiting:
            self._backlog_began, self._num_admitted = self._clock(), 0.0
        self._num_waiting += 1

    def _enter(self, tenant: str) -> None:
        if tenant not in self._num_open:
            least = min((self._served[each] for each in self._num_open), default=0.0)
            self._served[tenant] = min(max(self._served.get(tenant, least), least), least + MAX_DEBT)
        self._num_open[tenant] += 1

    def _take_out(self, sequence: Sequence) -> None:
        queues, tenant = self._queues[sequence.request.is_batch], sequence.request.tenant
        preempted = self._preempted[sequence.request.is_batch]
        self._num_waiting -= 1
        if sequence in preempted:
            preempted.remove(sequence)
            return
        queues[tenant].remove(sequence)
        if not queues[tenant]:
            del queues[tenant]
