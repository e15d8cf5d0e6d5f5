"""ReplyTrace: the span of one generated reply and the spans of its phases: queue, prefill, decode, stream.

Attributes follow OpenTelemetry's conventions for generative AI, and names below `quicksilver.` count the engine's work.
All spans are made at the end of the reply, from times that were noted before. Like `http/tracing`, this module is
imported only by servers that trace.
"""

from __future__ import annotations

import time
from collections.abc import Sequence

from opentelemetry.context import Context
from opentelemetry.trace import Span, set_span_in_context
from opentelemetry.util.types import AttributeValue

from quicksilver.errors import QuicksilverError
from quicksilver.server.generation.plan import ReplyPlan
from quicksilver.server.http.tracing import RequestTrace, mark_failed
from quicksilver.text.answer import Finished

# Last parts of routes whose replies are not `chat`.
OPERATIONS = {
    "completions": "text_completion",
    "generate": "text_completion",
    "infill": "text_completion",
    "decisions": "decide",
    "systemone": "decide",
}
# Outcome of a reply whose reader was gone before its end.
DISCONNECTED = "client_disconnected"


class ReplyTrace:
    def __init__(self, request: RequestTrace, route: str, plan: ReplyPlan, model: str, *, is_streamed: bool) -> None:
        self._request = request
        self._operation = operation_of(route)
        self._plan = plan
        self._model = model
        self._is_streamed = is_streamed
        self._wall_ns = time.time_ns() - time.perf_counter_ns()
        self._began = self._admitted = time.perf_counter()
        self._first: float | None = None
        self._queued_s = 0.0
        self._is_ended = False

    def admitted(self) -> None:
        """The reply is paid for and its requests are sent to the engine."""
        self._admitted = time.perf_counter()

    def first_token(self, queued_s: float) -> None:
        self._first = time.perf_counter()
        self._queued_s = queued_s

    def end(self, finished: Sequence[Finished], *, is_complete: bool, error: BaseException | None) -> None:
        """Makes the spans. A second call does nothing."""
        if self._is_ended:
            return
        self._is_ended = True
        ended = time.perf_counter()
        span = self._span(f"{self._operation} {self._model}", self._request.context, self._began)
        if span.is_recording():
            span.set_attributes(self._attributes(finished if is_complete else ()))
            if not is_complete:
                mark_failed(span, error_type(error))
            self._add_phases(span, finished if is_complete else (), ended)
        span.end(self._ns(ended))

    def _span(self, name: str, context: Context, began: float) -> Span:
        return self._request.tracer.start_span(name, context, start_time=self._ns(began))

    def _ns(self, clock_s: float) -> int:
        return self._wall_ns + int(clock_s * 1e9)

    def _add_phases(self, span: Span, finished: Sequence[Finished], ended: float) -> None:
        """Queue: to the first forward. Prefill: to the first token. Decode: to the last token, as the engine measured
        it. Stream: from the first token to the last byte, which a slow reader delays."""
        if self._first is None:
            return
        started = min(self._admitted + self._queued_s, self._first)
        engine_s = max((each.usage.engine_s for each in finished), default=0.0)
        decoded = min(max(self._admitted + engine_s, self._first), ended) if engine_s else ended
        self._phase(span, "queue", self._began, started)
        self._phase(span, "prefill", started, self._first)
        self._phase(span, "decode", self._first, decoded)
        if self._is_streamed:
            self._phase(span, "stream", self._first, ended)

    def _phase(self, parent: Span, name: str, began: float, ended: float) -> None:
        self._span(name, set_span_in_context(parent), began).end(self._ns(ended))

    def _attributes(self, finished: Sequence[Finished]) -> dict[str, AttributeValue]:
        params = self._plan.answers[0].request.params if self._plan.answers else None
        asked: dict[str, AttributeValue] = {
            "gen_ai.operation.name": self._operation,
            "gen_ai.provider.name": "quicksilver",
            "gen_ai.request.model": self._plan.model,
            "gen_ai.response.model": self._model,
            "gen_ai.response.id": self._plan.id,
            "gen_ai.request.stream": self._is_streamed,
            "gen_ai.request.choice.count": self._plan.num_answers,
            "gen_ai.usage.input_tokens": self._plan.num_prompt_tokens,
        }
        if params is not None:
            asked["gen_ai.request.max_tokens"] = params.max_new_tokens
            asked["gen_ai.request.temperature"] = params.temperature
            asked["gen_ai.request.top_p"] = params.top_p
            asked["gen_ai.request.seed"] = params.seed
            asked["quicksilver.decoder"] = str(params.decoder.name)
        return {**asked, **(work_attributes(finished, self._plan.num_answers) if finished else {})}


def work_attributes(finished: Sequence[Finished], num_answers: int) -> dict[str, AttributeValue]:
    """What the answers used; a prompt counts once."""
    usages = [each.usage for each in finished]
    return {
        "gen_ai.response.finish_reasons": [str(each.reason) for each in finished],
        "gen_ai.usage.output_tokens": sum(usage.completion_tokens for usage in usages),
        "gen_ai.usage.cache_read.input_tokens": sum(usage.cached_tokens for usage in usages[::num_answers]),
        "quicksilver.forwards": sum(usage.forwards for usage in usages),
        "quicksilver.drafted_tokens": sum(usage.drafted for usage in usages),
        "quicksilver.accepted_tokens": sum(usage.accepted for usage in usages),
        "quicksilver.migrated": sum(usage.migrated for usage in usages),
    }


def operation_of(route: str) -> str:
    """The operation of a route template. Chat completions, messages, responses and Ollama's chat are `chat`."""
    if route.endswith("/chat/completions"):
        return "chat"
    return OPERATIONS.get(route.rsplit("/", 1)[-1], "chat")


def error_type(error: BaseException | None) -> str:
    if not isinstance(error, Exception):  # nothing, or a cancellation
        return DISCONNECTED
    return error.code if isinstance(error, QuicksilverError) else type(error).__name__
