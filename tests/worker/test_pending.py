from __future__ import annotations

from dataclasses import replace

from quicksilver.core import CanvasState, Delta, FinishReason, Request, ResumePoint, ScoreRequest, Scores, Usage
from quicksilver.errors import EngineDied, RowFailed
from quicksilver.worker import protocol
from quicksilver.worker.pending import PendingRequest, PendingScore, PendingStream

REQUEST = Request("a", (1, 2, 3))
CANVAS = CanvasState((7, 8), (False, True), (0.5, 0.25), (None, None), 3, 1)


def submitted(pending: PendingRequest) -> Request:
    command = pending.command()
    assert isinstance(command, protocol.Submit)
    return command.request


async def test_a_new_request_is_sent_as_it_is() -> None:
    assert submitted(PendingStream(REQUEST)) == REQUEST


async def test_a_continued_request_carries_the_state_after_its_last_delta() -> None:
    pending = PendingStream(REQUEST)
    pending.put(Delta("a", (4, 5), usage=Usage(3, 0, 2, forwards=1)))
    pending.put(Delta("a", (6,), usage=Usage(3, 0, 3, forwards=2), canvas=CANVAS))
    assert pending.interrupt(()) is None
    request = submitted(pending)
    assert request.resume is not None
    assert request.resume.token_ids == (4, 5, 6)
    assert request.resume.canvas == CANVAS
    assert request.resume.usage == Usage(3, 0, 3, forwards=2, migrated=1)
    assert not request.runs_alone
    assert replace(request, resume=None, id="a") == REQUEST


async def test_a_continued_request_has_an_id_of_its_own_in_the_worker() -> None:
    """The worker may still be ending the request under its first id."""
    pending = PendingStream(REQUEST)
    assert pending.wire_id == "a"
    pending.interrupt(())
    assert submitted(pending).id == pending.wire_id != "a"
    pending.put(Delta(pending.wire_id, (4,), finish=FinishReason.STOP))
    assert [event.request_id async for event in pending.mailbox.read()] == ["a"]
    score = PendingScore(ScoreRequest("s", (1,), ((2,),)))
    score.interrupt(())
    command = score.command()
    assert isinstance(command, protocol.Score)
    assert command.request.id == score.wire_id != "s"


async def test_a_finished_stream_is_not_continued() -> None:
    pending = PendingStream(REQUEST)
    pending.put(Delta("a", (4,), finish=FinishReason.STOP))
    assert pending.is_finished


async def test_a_request_in_the_fatal_step_runs_alone_until_it_advances() -> None:
    pending = PendingStream(REQUEST)
    assert pending.interrupt({"a", "b"}) is None
    assert submitted(pending).runs_alone
    # What the grammar determines is known before the first forward.
    pending.put(Delta("a", (4, 5), num_forced=2))
    assert submitted(pending).runs_alone
    pending.put(Delta("a", (4, 5), num_forced=1))
    assert not submitted(pending).runs_alone


async def test_two_workers_ended_by_one_request_alone_fail_it() -> None:
    pending = PendingStream(REQUEST)
    assert pending.interrupt({"a", "b"}) is None
    assert pending.interrupt({pending.wire_id}) is None
    assert pending.num_ended_alone == 1
    assert isinstance(pending.interrupt({pending.wire_id}), RowFailed)


async def test_progress_between_two_ends_clears_the_suspicion() -> None:
    pending = PendingStream(REQUEST)
    assert pending.interrupt({"a"}) is None
    pending.put(Delta("a", (4,)))
    assert pending.interrupt({pending.wire_id}) is None


async def test_workers_that_another_request_ended_alone_do_not_count() -> None:
    pending = PendingStream(REQUEST)
    assert [pending.interrupt({"b"}) for _ in range(9)] == [None] * 9
    request = submitted(pending)
    assert request.resume is not None
    assert request.resume.usage.migrated == 9
    assert not request.runs_alone


async def test_a_fourth_end_fails_any_request() -> None:
    pending = PendingStream(REQUEST)
    assert [pending.interrupt(()) for _ in range(3)] == [None] * 3
    assert isinstance(pending.interrupt(()), EngineDied)


async def test_scores_are_computed_again() -> None:
    pending = PendingScore(ScoreRequest("s", (1,), ((2,),)))
    assert pending.interrupt({"s", "t"}) is None
    command = pending.command()
    assert isinstance(command, protocol.Score)
    assert command.request == ScoreRequest(pending.wire_id, (1,), ((2,),), runs_alone=True, is_continued=True)
    pending.resolve(Scores(((-1.0,),), Usage(migrated=2)))
    pending.resolve(Scores(((-2.0,),)))
    scores = await pending.future
    assert scores.logprobs == ((-1.0,),)
    assert scores.usage.migrated == 3, "one here, and two that a replica counted"


async def test_a_continued_request_that_is_interrupted_again_keeps_its_whole_answer() -> None:
    start = ResumePoint((4, 5), CANVAS, Usage(3, 0, 2, forwards=1, migrated=1))
    pending = PendingStream(replace(REQUEST, resume=start))
    assert pending.interrupt(()) is None
    assert submitted(pending).resume == replace(start, usage=replace(start.usage, migrated=2))
    pending.put(Delta("a", (6,), usage=Usage(3, 0, 3, forwards=2)))
    resume = submitted(pending).resume
    assert resume is not None
    assert (resume.token_ids, resume.usage.migrated) == ((4, 5, 6), 2)


async def test_interruptions_that_the_engine_itself_counted_are_kept() -> None:
    """A replica of a cluster replaces its own workers."""
    pending = PendingStream(REQUEST)
    pending.put(Delta("a", (4,), usage=Usage(3, 0, 1, migrated=2)))
    assert pending.interrupt(()) is None
    resume = submitted(pending).resume
    assert resume is not None
    assert resume.usage.migrated == 3
