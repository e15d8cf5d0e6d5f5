"""The Python API over real weights: answers, pieces, frames, samples, likelihoods and the diffusion bound."""

from __future__ import annotations

import pytest

from benchmarks.prediction import measure, repeat_case
from quicksilver.engine.load import LoadConfig
from quicksilver.llm import LLM
from tests.support.tiny import decode_params
from tests.support.weights import nano

pytestmark = [pytest.mark.parity, pytest.mark.timeout(600)]


@pytest.fixture(scope="module")
def llm() -> LLM:
    nano()
    return LLM("nano", LoadConfig(device="cpu"))


def test_pieces_of_a_stream_make_the_answer_and_frames_show_the_canvas(llm: LLM) -> None:
    params = decode_params("verify", canvas_len=8, max_new_tokens=16)
    prompt = llm.chat_prompt("What is the capital of France?")
    answer = llm.chat("What is the capital of France?", params)
    pieces = list(llm.frames(prompt, params))
    assert "Paris" in answer.text
    assert "".join(piece.text for piece in pieces) == answer.text
    assert any(piece.frame is not None and piece.frame.token_ids for piece in pieces)


def test_a_stop_string_ends_the_answer_before_it_and_frees_the_request(llm: LLM) -> None:
    params = decode_params("verify", max_new_tokens=24)
    whole = llm.chat("What is the capital of France?", params).text
    cut = llm.chat("What is the capital of France?", params, stop=["Paris"]).text
    assert cut == whole[: whole.index("Paris")]
    assert llm.engine.stats().running == 0


def test_n_samples_are_n_answers_with_seeds_of_their_own(llm: LLM) -> None:
    prompt = llm.chat_prompt("Name an animal.")
    params = decode_params("verify", max_new_tokens=8, temperature=1.2, seed=3)
    answers = llm.samples(prompt, 4, params)
    assert len(answers) == 4
    assert len({answer.token_ids for answer in answers}) > 1
    alone = llm.samples(prompt, 1, decode_params("verify", max_new_tokens=8, temperature=1.2, seed=5))
    assert alone[0].token_ids == answers[2].token_ids


def test_the_likelier_continuation_scores_higher_and_the_bound_stays_below(llm: LLM) -> None:
    paris, banana = llm.score("The capital of France is", [" Paris", " banana"])
    assert paris > banana
    text = " Paris, a city in Europe."
    likelihood = llm.score("The capital of France is", [text])[0]
    assert llm.bound("The capital of France is", text, canvas_len=8, num_samples=4) < likelihood + 1.0


def test_a_file_with_one_changed_line_takes_a_third_of_the_rounds_with_a_prediction(llm: LLM) -> None:
    """The first 50 lines; `benchmarks/prediction.py` has the figures of 300."""
    found = measure(llm, repeat_case(llm, 50))
    assert found["is_same_text"]
    assert found["round_ratio"] >= 3
    assert found["forward_ratio"] >= 3
