"""The engine against loops without a cache that follow each family's published algorithm, token for token.

The loops are written from the algorithms' descriptions, over one dense forward of the whole text per step. They share
no code with the decoders. All are greedy, because the families draw their random numbers in their own ways.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import replace

import pytest
import torch
from torch import Tensor

from quicksilver.core import DecodeParams, FinishReason, Request
from quicksilver.model.transformer import Transformer
from tests.support.dense_attend import DenseAttend
from tests.support.dialects import MASK_ID, dialect_engine, dialect_model, tiny_dialect
from tests.support.tiny import answers, decode_params, finish_all

pytestmark = pytest.mark.parity

NUM_NEW = 24


def prompt_of(num_tokens: int) -> list[int]:
    return [random.Random(num_tokens).randrange(MASK_ID) for _ in range(num_tokens)]


@torch.inference_mode()
def logits_of(
    model: Transformer, tokens: list[int], visible: Tensor, positions: list[int] | None = None, first_adapted: int = -1
) -> Tensor:
    """Logits of every row, without the mask token; rows from `first_adapted` on pass through the adapter."""
    is_canvas = None
    if first_adapted >= 0:
        is_canvas = torch.arange(len(tokens)) >= first_adapted
    where = torch.arange(len(tokens)) if positions is None else torch.tensor(positions)
    hidden = model(model.embed(torch.tensor(tokens)), where, DenseAttend(1, visible[None, None]), is_canvas)
    logits = model.logits(hidden).clone()
    logits[:, MASK_ID] = -torch.inf
    return logits


def block_mask(num_tokens: int, length: int) -> Tensor:
    block = torch.arange(num_tokens) // length
    return block[:, None] >= block


def best(logits: Tensor) -> tuple[list[int], list[float]]:
    p, token = logits.softmax(-1).max(-1)
    return token.tolist(), p.tolist()


def block_loop(model: Transformer, prompt: list[int], length: int, threshold: float, steps: int = 0) -> list[int]:
    """SDAR, LLaDA2.0, Efficient-DLM, Stable-DiffCoder: masked rows predict themselves. With `steps`, SDAR's dynamic
    rule: if fewer positions than their share of the block are above the threshold, the likeliest ones are taken."""
    text, known = list(prompt), [True] * len(prompt)
    counts: list[int] = []
    while len(text) - len(prompt) < NUM_NEW or not all(known):
        if all(known):
            missing = length - len(text) % length
            text, known = text + [MASK_ID] * missing, known + [False] * missing
            counts = [length // steps + (i < length % steps) for i in range(steps)] if steps else []
        tokens, p = best(logits_of(model, text, block_mask(len(text), length)))
        masked = [i for i, is_known in enumerate(known) if not is_known]
        chosen, least = [i for i in masked if p[i] > threshold], counts.pop(0) if counts else 1
        if len(chosen) < least:
            chosen = sorted(masked, key=lambda i: (-p[i], i))[:least]
        for i in chosen:
            text[i], known[i] = tokens[i], True
    return text[len(prompt) :][:NUM_NEW]


def fast_dllm_loop(model: Transformer, prompt: list[int], length: int, threshold: float) -> list[int]:
    """Fast-dLLM v2: the row before predicts a position; sub-blocks from left to right; commits yield a token."""
    text, known = list(prompt), [True] * len(prompt)
    while len(text) - len(prompt) < NUM_NEW or not all(known):
        tokens, p = best(logits_of(model, text, block_mask(len(text), length)))
        if all(known) and len(text) % length == 0:
            text, known = [*text, tokens[-1]], [*known, True]
            continue
        if all(known):
            missing = length - len(text) % length
            text, known = text + [MASK_ID] * missing, known + [False] * missing
            continue
        masked = [i for i, is_known in enumerate(known) if not is_known]
        masked = [i for i in masked if i // 4 == masked[0] // 4]
        chosen = [i for i in masked if p[i - 1] > threshold] or [max(masked, key=lambda i: (p[i - 1], -i))]
        for i in chosen:
            text[i], known[i] = tokens[i - 1], True
    return text[len(prompt) :][:NUM_NEW]


def edit_loop(
    model: Transformer, prompt: list[int], length: int, threshold: float, edit_threshold: float, stop: int = -1
) -> list[int]:
    """LLaDA2.1: filled positions may be replaced; a block ends after a pass without a change, or after 16 passes. The
    answer ends with the first finished block that has a stop token."""
    text = list(prompt)
    while len(text) - len(prompt) < NUM_NEW and stop not in text[len(prompt) :]:
        start, missing = len(text), length - len(text) % length
        text += [MASK_ID] * missing
        masked, spent = set(range(start, len(text))), 0
        while True:
            spent += not masked
            if spent > 16:
                break
            tokens, p = best(logits_of(model, text, block_mask(len(text), length)))
            filled = {i for i in masked if p[i] > threshold} or set(sorted(masked, key=lambda i: (-p[i], i))[:1])
            edited = {
                i for i in range(start, len(text)) if i not in masked and tokens[i] != text[i] and p[i] > edit_threshold
            }
            for i in filled | edited:
                text[i] = tokens[i]
            had_masks, masked = bool(masked), masked - filled
            if not had_masks and not edited:
                break
    answer = text[len(prompt) :][:NUM_NEW]
    return answer[: answer.index(stop)] if stop in answer else answer


def full_loop(
    model: Transformer, prompt: list[int], length: int, threshold: float, *, is_shifted: bool = False, steps: int = 0
) -> list[int]:
    """LLaDA, and Dream with `is_shifted`: all rows see each other, masks included. Parts of four positions are filled
    from left to right: by confidence, or with `steps` a fixed number of positions in each step."""
    text = list(prompt)
    while len(text) - len(prompt) < NUM_NEW:
        start = len(text)
        text += [MASK_ID] * min(length, NUM_NEW - (start - len(prompt)))
        everything = torch.ones(len(text), len(text)).bool()
        for first in range(start, len(text), 4):
            masked = list(range(first, min(first + 4, len(text))))
            counts = [len(masked) // steps + (i < len(masked) % steps) for i in range(steps)] if steps else []
            while masked:
                tokens, p = best(logits_of(model, text, everything))
                row = {i: i - is_shifted for i in masked}
                ranked = sorted(masked, key=lambda i: (-p[row[i]], i))
                chosen = ranked[: counts.pop(0)] if steps else [i for i in masked if p[row[i]] > threshold]
                for i in chosen or ranked[:1]:
                    text[i] = tokens[row[i]]
                    masked.remove(i)
    return text[len(prompt) :]


def nemotron_loop(model: Transformer, prompt: list[int], length: int, threshold: float) -> list[int]:
    """Nemotron's diffusion mode: a causal pass gives the first token of each block; the block's rows see each other."""
    text = list(prompt)
    while len(text) - len(prompt) < NUM_NEW:
        causal = torch.ones(len(text), len(text)).tril().bool()
        start = len(text)
        text.append(best(logits_of(model, text, causal))[0][-1])
        text += [MASK_ID] * (length - 1)
        masked = set(range(start + 1, len(text)))
        while masked:
            visible = torch.ones(len(text), len(text)).tril().bool()
            visible[start:, start:] = True
            tokens, p = best(logits_of(model, text, visible, first_adapted=start))
            ranked = sorted(masked, key=lambda i: (-p[i], i))
            chosen = {ranked[0], *(i for i in ranked if p[i] > threshold)}
            for i in chosen:
                text[i] = tokens[i]
            masked -= chosen
    return text[len(prompt) :][:NUM_NEW]


def window_loop(model: Transformer, prompt: list[int], width: int, bound: float) -> list[int]:
    """WeDLM: filled positions before masks, visibility by order; a filled run leaves after its next forward."""
    done, window = list(prompt), list[int | None]([None] * width)
    while len(done) - len(prompt) < NUM_NEW:
        start = len(done)
        filled = [i for i, token in enumerate(window) if token is not None]
        masks = [i for i, token in enumerate(window) if token is None]
        rows = done + [int(window[i] or 0) for i in filled] + [MASK_ID] * len(masks)
        positions = [*range(start), *(start + i for i in [*filled, *masks])]
        logits = logits_of(model, rows, torch.ones(len(rows), len(rows)).tril().bool(), positions)
        logits = logits[start + len(filled) :]
        p = logits.softmax(-1)
        entropy = -(p * logits.log_softmax(-1).clamp_min(-1e4)).sum(-1)
        scores = {i: float(entropy[row]) + 0.02 * (i - masks[0]) for row, i in enumerate(masks)}
        leaving = window.index(None) if masks else width
        for i in [i for i in masks if scores[i] < bound] or sorted(masks, key=lambda i: (scores[i], i))[:1]:
            window[i] = int(logits[masks.index(i)].argmax())
        done += [int(token or 0) for token in window[:leaving]]
        window = window[leaving:] + [None] * leaving
    return done[len(prompt) :][:NUM_NEW]


Loop = Callable[[Transformer, list[int]], list[int]]
CASES: dict[str, tuple[str, DecodeParams, Loop]] = {
    "sdar": (
        "sdar",
        decode_params("confidence", threshold=0.25, max_new_tokens=NUM_NEW),
        lambda model, prompt: block_loop(model, prompt, 4, 0.25),
    ),
    "sdar in two steps": (
        "sdar",
        decode_params("confidence", rule="dynamic", threshold=0.4, steps=2, max_new_tokens=NUM_NEW),
        lambda model, prompt: block_loop(model, prompt, 4, 0.4, steps=2),
    ),
    "sdar in three steps": (
        "sdar",
        decode_params("confidence", rule="dynamic", threshold=0.9, steps=3, max_new_tokens=NUM_NEW),
        lambda model, prompt: block_loop(model, prompt, 4, 0.9, steps=3),
    ),
    "llada2.0": (
        "llada2",
        decode_params("confidence", threshold=0.2, max_new_tokens=NUM_NEW),
        lambda model, prompt: block_loop(model, prompt, 8, 0.2),
    ),
    "llada2.1": (
        "llada2",
        decode_params("edit", threshold=0.2, edit_threshold=0.2, stutter_penalty=0.0, max_new_tokens=NUM_NEW),
        lambda model, prompt: edit_loop(model, prompt, 8, 0.2, 0.2),
    ),
    "fast-dllm-v2": (
        "fast-dllm-v2",
        decode_params("confidence", threshold=0.25, max_new_tokens=NUM_NEW),
        lambda model, prompt: fast_dllm_loop(model, prompt, 8, 0.25),
    ),
    "nemotron diffusion": (
        "nemotron-labs-diffusion",
        decode_params("confidence", threshold=0.2, max_new_tokens=NUM_NEW),
        lambda model, prompt: nemotron_loop(model, prompt, 8, 0.2),
    ),
    "llada": (
        "llada",
        decode_params("confidence", threshold=0.2, max_new_tokens=NUM_NEW),
        lambda model, prompt: full_loop(model, prompt, 12, 0.2),
    ),
    "llada in three steps": (
        "llada",
        decode_params("confidence", rule="static", steps=3, max_new_tokens=NUM_NEW),
        lambda model, prompt: full_loop(model, prompt, 12, 0.0, steps=3),
    ),
    "dream": (
        "dream",
        decode_params("confidence", threshold=0.2, max_new_tokens=NUM_NEW),
        lambda model, prompt: full_loop(model, prompt, 12, 0.2, is_shifted=True),
    ),
    "wedlm": (
        "wedlm-8b",
        decode_params("window", canvas_len=6, entropy_bound=2.6, max_new_tokens=NUM_NEW),
        lambda model, prompt: window_loop(model, prompt, 6, 2.6),
    ),
}


@pytest.mark.parametrize("case", CASES)
def test_the_engine_equals_the_familys_loop_without_a_cache(case: str) -> None:
    name, params, loop = CASES[case]
    engine, length = dialect_engine(name), max(tiny_dialect(name).block_len, 4)
    prompts = [prompt_of(num_tokens) for num_tokens in (2 * length, 2 * length + 1, 3 * length - 1)]
    for i, prompt in enumerate(prompts):
        engine.add(Request(str(i), tuple(prompt), params))
    found = answers(finish_all(engine))
    for i, prompt in enumerate(prompts):
        assert found[str(i)] == loop(dialect_model(name), prompt)


@pytest.mark.parametrize("stop", [38, 57, 81, 94])
def test_editing_goes_on_after_a_stop_token_is_filled(stop: int) -> None:
    """Each of these tokens is filled early and replaced later; the last two are in the answer as well."""
    engine, prompt = dialect_engine("llada2"), prompt_of(17)
    params = decode_params("edit", threshold=0.2, edit_threshold=0.2, stutter_penalty=0.0, max_new_tokens=NUM_NEW)
    engine.add(Request("only", tuple(prompt), replace(params, stop_ids=(stop,))))
    deltas = finish_all(engine)
    found = answers(deltas)["only"]
    assert found == edit_loop(dialect_model("llada2"), prompt, 8, 0.2, 0.2, stop)
    assert (deltas["only"][-1].finish is FinishReason.STOP) == (len(found) < NUM_NEW) == (stop in (81, 94))


def test_self_speculation_writes_the_autoregressive_text() -> None:
    """Nemotron's linear speculation is exact: a draft changes the number of forwards, never the text."""
    engine = dialect_engine("nemotron-labs-diffusion")
    for i, num_tokens in enumerate((1, 8, 21)):
        for kind, canvas_len in (("ar", 1), ("verify", 4), ("verify", 8)):
            params = decode_params(kind, canvas_len=canvas_len, max_new_tokens=NUM_NEW, temperature=0.7 * (i % 2))
            engine.add(Request(f"{i} {kind} {canvas_len}", tuple(prompt_of(num_tokens)), params))
    found = answers(finish_all(engine))
    for i in range(3):
        assert found[f"{i} verify 4"] == found[f"{i} verify 8"] == found[f"{i} ar 1"]
