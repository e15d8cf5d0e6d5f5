"""Plans: limits, seeds and ids of a reply, and wire fields as decode parameters."""

from __future__ import annotations

from dataclasses import replace

import pytest

from quicksilver.core import DecodeParams, DecoderName, DecoderParams, Request
from quicksilver.errors import ContextTooLong, InvalidRequest
from quicksilver.server.generation.plan import (
    REALTIME_CANVAS_LEN,
    AnswerRequest,
    limit_tokens,
    plan_reply,
    read_decoder,
    read_logit_bias,
    read_seed,
    read_stop,
    read_stop_ids,
    read_top_k,
    with_given,
)
from quicksilver.server.http.fields import DecoderBody
from tests.server.conftest import Served
from tests.support.fake_engine import INFO


def answer(num_prompt: int, max_new_tokens: int, seed: int = 0) -> AnswerRequest:
    return AnswerRequest(Request("", (1,) * num_prompt, DecodeParams(max_new_tokens=max_new_tokens, seed=seed)))


def test_copies_of_an_answer_differ_in_id_and_seed() -> None:
    plan = plan_reply("cmpl", "nano", [answer(3, 10, seed=7), answer(4, 20, seed=7)], num_answers=2)
    requests = [each.request for each in plan.answers]
    assert [request.seed for request in (r.params for r in requests)] == [7, 8, 7, 8]
    assert [request.id for request in requests] == [f"{plan.id}/{i}" for i in range(4)]
    assert plan.id.startswith("cmpl-")


def test_a_prompt_counts_once_and_every_answer_is_reserved() -> None:
    plan = plan_reply("cmpl", "nano", [answer(3, 10), answer(4, 20)], num_answers=2)
    assert (plan.num_prompt_tokens, plan.max_output_tokens) == (7, 60)


def test_a_plan_without_answers_costs_nothing() -> None:
    plan = plan_reply("chatcmpl", "nano", [])
    assert (plan.num_prompt_tokens, plan.max_output_tokens, plan.answers) == (0, 0, ())


def test_token_limits(served: Served) -> None:
    context_len = INFO.context_len
    assert limit_tokens(10, 5, served.services, "messages").max_new_tokens == 5
    lowered = limit_tokens(context_len - 3, 5, served.services, "messages")
    assert lowered.max_new_tokens == 3
    assert "lowered to 3" in (lowered.warning or "")
    assert limit_tokens(context_len - 3, None, served.services, "messages").warning is None
    served.engine.info = replace(served.engine.info, warning="approximate")
    assert limit_tokens(10, 5, served.services, "messages").warning == "approximate"
    assert limit_tokens(context_len - 3, 5, served.services, "messages").warning == f"{lowered.warning}; approximate"
    with pytest.raises(ContextTooLong) as caught:
        limit_tokens(context_len, 5, served.services, "messages")
    assert caught.value.param == "messages"


def test_absent_fields_keep_their_defaults() -> None:
    defaults = DecodeParams(temperature=0.7, top_p=0.9)
    assert with_given(defaults, {"temperature": 0.0, "top_p": None}) == DecodeParams(temperature=0.0, top_p=0.9)


def test_stop_strings_top_k_and_seed() -> None:
    assert (read_stop(None), read_stop("a"), read_stop(["a", "b"])) == ((), ("a",), ("a", "b"))
    assert (read_top_k(None), read_top_k(-1), read_top_k(0), read_top_k(5)) == (None, 0, 0, 5)
    assert read_seed(3) == 3
    assert read_seed(None) != read_seed(None)


def test_token_ids_beyond_the_vocabulary_are_refused() -> None:
    assert read_logit_bias({"3": 1.0}, INFO) == {3: 1.0}
    assert read_stop_ids([3], INFO) == (3,)
    with pytest.raises(InvalidRequest, match="logit_bias"):
        read_logit_bias({str(INFO.vocab_size): 1.0}, INFO)
    with pytest.raises(InvalidRequest, match="stop_ids"):
        read_stop_ids([INFO.vocab_size], INFO)


def test_decoder_options() -> None:
    assert read_decoder(None, is_realtime=True, info=INFO).canvas_len == REALTIME_CANVAS_LEN
    given = read_decoder(DecoderBody(name="ar", canvas_len=4), is_realtime=True, info=INFO)
    assert (given.name, given.canvas_len) == (DecoderName.AR, 4)
    with pytest.raises(InvalidRequest, match="canvas_len"):
        read_decoder(DecoderBody(canvas_len=INFO.max_canvas_len + 1), is_realtime=False, info=INFO)


def test_another_decoder_has_its_own_parameters() -> None:
    edit = DecoderParams(DecoderName.EDIT, threshold=0.7, edit_threshold=0.5)
    confidence = DecoderParams(DecoderName.CONFIDENCE, threshold=0.95)
    info = replace(INFO, default_decoder=edit, other_decoders=(confidence,))
    assert read_decoder(DecoderBody(name="confidence"), is_realtime=False, info=info) == confidence
    assert read_decoder(DecoderBody(name="confidence", threshold=0.8), is_realtime=False, info=info).threshold == 0.8
    assert read_decoder(DecoderBody(edit_threshold=0.6), is_realtime=False, info=info).threshold == 0.7
    assert read_decoder(None, is_realtime=False, info=info) == edit
    assert read_decoder(DecoderBody(name="ar"), is_realtime=False, info=info).threshold == 0.7
