"""Scripted answers of each decoder: the deltas and frames of successive forwards."""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from functools import partial
from math import log

from quicksilver.core import DecoderName, Delta, FinishReason, Frame, Request, TokenLogprob, Usage
from tests.support.fake_engine import Step


@dataclass(frozen=True)
class Score:
    """The scripted answer, two alternative tokens, the forced positions and the delays."""

    ids: Sequence[int]
    others: Sequence[int]
    forced: Collection[int] = ()
    pause_s: float = 0.0


class Denoising:
    """One scripted request, forward by forward."""

    def __init__(self, request: Request, score: Score) -> None:
        self.request = request
        self.score = score
        self.ids = tuple(score.ids)[: request.params.max_new_tokens]
        self.pause = partial(asyncio.sleep, score.pause_s)
        self.steps: list[Step] = []
        self.forward = 0
        self.at = 0

    def run(self) -> list[Step]:
        canvas_len = max(1, self.request.params.decoder.canvas_len)
        while self.at < len(self.ids):
            canvas = self.ids[self.at : self.at + canvas_len]
            CANVASES[self.request.params.decoder.name](self, canvas)
        self.finish()
        return self.steps

    def show(self, ids: Sequence[int], decided: Sequence[bool], confidence: Sequence[float]) -> None:
        self.forward += 1
        self.steps.append(self.pause)
        if self.request.wants_frames:
            frame = Frame(
                self.request.id, self.forward, tuple(ids), tuple(decided), tuple(confidence), self.tops(ids, confidence)
            )
            self.steps.append(frame)

    def commit(self, num: int) -> None:
        """Each run of forced tokens ends a delta."""
        end = min(self.at + num, len(self.ids))
        while self.at < end:
            first_forced = next((i for i in range(self.at, end) if i in self.score.forced), end)
            stop = next((i for i in range(first_forced, end) if i not in self.score.forced), end)
            self.steps.append(self.delta(stop, stop - first_forced))

    def delta(self, stop: int, num_forced: int) -> Delta:
        ids = self.ids[self.at : stop]
        logprobs = tuple(self.logprob(self.at + i, token) for i, token in enumerate(ids))
        self.at = stop
        has_logprobs = self.request.params.logprobs is not None
        return Delta(self.request.id, ids, logprobs if has_logprobs else (), num_forced)

    def tops(self, ids: Sequence[int], confidence: Sequence[float]) -> tuple[tuple[tuple[int, float], ...], ...]:
        return tuple(map(self.top, ids, confidence)) if self.request.params.logprobs else ()

    def logprob(self, at: int, token: int) -> TokenLogprob:
        if at in self.score.forced:
            return TokenLogprob(token, 0.0)
        top = self.top(token, 0.55 + 0.04 * (token * 7 % 11))
        return TokenLogprob(token, top[0][1], top)

    def top(self, token: int, sure: float) -> tuple[tuple[int, float], ...]:
        first, second = self.score.others
        return ((token, log(sure)), (first, log(0.75 * (1 - sure))), (second, log(0.25 * (1 - sure))))

    def finish(self) -> None:
        num = len(self.ids)
        usage = Usage(len(self.request.prompt_ids), 0, num, forwards=max(1, self.forward), drafted=num, accepted=num)
        self.steps.append(Delta(self.request.id, finish=FinishReason.STOP, usage=usage))


def one_by_one(run: Denoising, canvas: Sequence[int]) -> None:
    run.commit(1)
    run.show((), (), ())


def draft_and_verify(run: Denoising, canvas: Sequence[int]) -> None:
    """The first token comes from the causal row; the last drafted token is rejected and replaced."""
    run.commit(1)
    drafts = [*canvas[1:-1], run.score.others[0]][: len(canvas) - 1]
    run.show(drafts, [False] * len(drafts), [0.95 - 0.05 * (i % 12) for i in range(len(drafts))])
    run.commit(len(canvas) - 1)
    run.show((), (), ())


def by_confidence(run: Denoising, canvas: Sequence[int]) -> None:
    """Every third position is decided in each forward."""
    for share in range(3):
        decided = [i % 3 <= share for i in range(len(canvas))]
        run.show(canvas, decided, [0.9 if is_decided else 0.2 for is_decided in decided])
    run.commit(len(canvas))


def with_edits(run: Denoising, canvas: Sequence[int]) -> None:
    """Decided tokens change once before they are committed."""
    wrong = [run.score.others[1] if i % 5 == 2 else token for i, token in enumerate(canvas)]
    run.show(wrong, [True] * len(canvas), [0.6] * len(canvas))
    run.show(canvas, [True] * len(canvas), [0.95] * len(canvas))
    run.commit(len(canvas))


CANVASES = {
    DecoderName.AR: one_by_one,
    DecoderName.VERIFY: draft_and_verify,
    DecoderName.CONFIDENCE: by_confidence,
    DecoderName.EDIT: with_edits,
}


def denoise(request: Request, score: Score) -> list[Step]:
    return Denoising(request, score).run()
