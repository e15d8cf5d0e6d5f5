"""The page at the end of a conversion: what `ar` and `verify` need for the same answers, in counts and on examples."""

from __future__ import annotations

import json
from html import escape
from pathlib import Path
from typing import Any

from quicksilver.training.canvas import Decode
from quicksilver.training.decode import BatchDecoder, CanvasWeights
from quicksilver.training.evaluate import HeldOut
from quicksilver.training.network import Network, as_written
from quicksilver.training.recipe import Evaluate

PAGE = "comparison.html"
NUM_EXAMPLES = 6
# Forwards of a round of `verify`: a draft and its verification.
ROUND_FORWARDS = 2
_STYLE = (
    "body{font:16px/1.5 system-ui,sans-serif;max-width:60rem;margin:2rem auto;padding:0 1rem}"
    "td,th{padding:.2rem .8rem;text-align:left;border-bottom:1px solid #8884}pre{white-space:pre-wrap}"
)


def examples(
    network: Network, weights: CanvasWeights, held_out: HeldOut, spec: Evaluate, decode: Decode
) -> list[dict[str, Any]]:
    """Some held-out prompts with their answers under `ar`, and what `verify` needed for them."""
    count = held_out.prompts.num_prompts
    picked = range(0, count, max(1, count // NUM_EXAMPLES))[:NUM_EXAMPLES]
    prompts = [held_out.prompts.prompt(index).tolist() for index in picked]
    plain = Network(network.model, as_written)
    decoder = BatchDecoder(plain, prompts, spec.max_new_tokens, list(held_out.stop_ids))
    canvas_len = max(spec.canvas_lens)
    ar, verified = decoder.ar(), decoder.verify(weights, canvas_len)
    return [
        {
            "prompt": decode(prompt),
            "answer": decode(ar.answer(index)),
            "is_same": ar.answer(index) == verified.answer(index),
            "tokens": int(ar.num_tokens[index]),
            "rounds": int(verified.num_rounds[index]),
            "canvas_len": canvas_len,
        }
        for index, prompt in enumerate(prompts)
    ]


def write_page(folder: Path, model: str) -> Path:
    """Writes the page from `evaluation.json` of a run."""
    found, title = json.loads((folder / "evaluation.json").read_text()), f"{escape(model)}: ar and verify"
    rows = [("ar", "1.00", "100", "100.0%")]
    for name, domains in found["drafts"].items():
        kind, _, canvas_len = name.partition(" K=")
        if kind == "verify":
            per_round, same = domains["all"]["tokens_per_round"], domains["all"]["same_as_ar"]
            forwards = f"{100 * ROUND_FORWARDS / per_round:.0f}"
            rows.append((f"verify, canvas {canvas_len}", f"{per_round:.2f}", forwards, f"{same:.1%}"))
    table = "".join(f"<tr>{''.join(f'<td>{cell}</td>' for cell in row)}</tr>" for row in rows)
    text = f"""<!doctype html>
<html lang="en"><meta charset="utf-8"><title>{title}</title><style>{_STYLE}</style>
<h1>{title}</h1>
<p>Held-out prompts, greedy. A round of <code>verify</code> is a draft and its verification: {ROUND_FORWARDS} forwards.
<code>ar</code> needs one forward per token. The texts can differ only where two logits tie in the arithmetic used.</p>
<table><tr><th>decoder</th><th>tokens per round</th><th>forwards per 100 tokens</th><th>text equal to ar</th></tr>
{table}</table>
<p>Tokens per second on this machine: <code>quicksilver bench --model {escape(model)}</code></p>
{"".join(map(_example, found["examples"]))}</html>
"""
    page = folder / PAGE
    page.write_text(text, encoding="utf-8")
    return page


def _example(found: dict[str, Any]) -> str:
    same = "the same text" if found["is_same"] else "another text after a tie"
    counts = (
        f"ar: {found['tokens']} forwards. verify, canvas {found['canvas_len']}: {found['rounds']} rounds, "
        f"{ROUND_FORWARDS * found['rounds']} forwards, {same}."
    )
    return f"<h2>{counts}</h2><pre>{escape(found['prompt'])}<b>{escape(found['answer'])}</b></pre>\n"
