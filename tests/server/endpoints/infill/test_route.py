"""llama.cpp's /infill."""

from __future__ import annotations

import json

from tests.server.conftest import Served, says

BODY = {"input_prefix": "def f(x):\n", "prompt": "    return ", "input_suffix": "\n\nf(1)\n", "seed": 1}


async def test_an_infill_equals_the_one_of_its_parts(served: Served) -> None:
    served.engine.script = says("x + 1")
    reply = (
        await served.post("/infill", {**BODY, "n_predict": 32, "cache_prompt": True, "samplers": ["top_k"]})
    ).json()
    body = {"prompt": "def f(x):\n    return ", "suffix": "\n\nf(1)\n", "max_tokens": 32, "seed": 1}
    await served.post("/v1/fim/completions", body)
    assert served.engine.seen[0].prompt_ids == served.engine.seen[1].prompt_ids
    assert served.engine.seen[0].params == served.engine.seen[1].params
    assert (reply["content"], reply["stop"], reply["stop_type"]) == ("x + 1", True, "eos")
    assert reply["timings"]["predicted_n"] == reply["tokens_predicted"] == 5


async def test_a_stream_ends_with_its_counts(served: Served) -> None:
    served.engine.script = says("x + 1", piece_len=2)
    text = (await served.post("/infill", {**BODY, "stream": True})).text
    chunks = [json.loads(line[6:]) for line in text.split("\n\n") if line]
    assert "".join(chunk["content"] for chunk in chunks) == "x + 1"
    assert [chunk["stop"] for chunk in chunks] == [False] * (len(chunks) - 1) + [True]
    assert chunks[-1]["timings"]["predicted_n"] == 5


async def test_only_requested_fields_are_returned(served: Served) -> None:
    fields = ["content", "timings/predicted_n", "nothing"]
    reply = (await served.post("/infill", {**BODY, "response_fields": fields})).json()
    assert set(reply) == {"content", "timings/predicted_n"}


async def test_other_files_come_before_the_prefix(served: Served) -> None:
    await served.post("/infill", {**BODY, "input_extra": [{"filename": "a.py", "text": "import math"}]})
    body = {"prompt": "import math\n\ndef f(x):\n    return ", "suffix": "\n\nf(1)\n"}
    await served.post("/v1/fim/completions", body)
    assert served.engine.seen[0].prompt_ids == served.engine.seen[1].prompt_ids


async def test_no_tokens_are_generated_for_a_request_that_fills_the_cache(served: Served) -> None:
    reply = (await served.post("/infill", {**BODY, "n_predict": 0})).json()
    assert (reply["content"], reply["stop_type"], served.engine.seen) == ("", "limit", [])


async def test_null_is_no_text(served: Served) -> None:
    extra = [{"filename": None, "text": "x"}]
    body = {"input_prefix": None, "input_suffix": None, "prompt": None, "input_extra": extra}
    assert (await served.post("/infill", body)).status_code == 200


async def test_timings_tell_the_prompt_from_the_answer(served: Served) -> None:
    served.engine.script = says("x + 1", piece_len=1)
    timings = (await served.post("/infill", BODY)).json()["timings"]
    # A thousandth of a millisecond stands for none.
    assert timings["predicted_ms"] > 0.001
    assert timings["predicted_per_second"] < 5e6
