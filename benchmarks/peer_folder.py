"""A model of the catalogue as a bfloat16 Hugging Face folder, for servers that read no GGUF: the same weights, rounded
as the CUDA engine rounds them, and a tokenizer converted from the GGUF.

    python -m benchmarks.peer_folder --model coder-1.5b --out FOLDER [--tokenizer FOLDER] [--only tokenizer]

The tokenizer needs transformers; `--tokenizer` copies files that an earlier call wrote instead. They are only kept if
they give the same ids as our own tokenizer for every prompt of the load measurements. The generation config names the
tokens that end an answer and nothing else: no penalties, no sampling defaults.
"""

from __future__ import annotations

import argparse
import json
import shutil
from pathlib import Path

from benchmarks.load_prompts import KINDS, SYSTEM, text_of
from quicksilver.hub.resolve import resolve
from quicksilver.text.chat import ChatTemplate, Message
from quicksilver.text.tokenizer import Tokenizer

NUM_PROMPTS, CONTEXT_LEN = 96, 32768


def write_tokenizer(model: str, out: Path) -> None:
    from transformers import AutoTokenizer

    weights = resolve(model).weights
    theirs = AutoTokenizer.from_pretrained(weights.parent, gguf_file=weights.name)
    theirs.save_pretrained(out)
    ours = Tokenizer.for_model(weights, None)
    path = out / "tokenizer_config.json"
    config = json.loads(path.read_text())
    ends = list(ours.eos_ids)
    config |= {"eos_token": theirs.convert_ids_to_tokens(ends[0]), "model_max_length": CONTEXT_LEN}
    kept = {name: value for name, value in config.items() if name not in ("is_local", "local_files_only")}
    path.write_text(json.dumps(kept, indent=2) + "\n")
    generation = {"eos_token_id": ends, "pad_token_id": theirs.pad_token_id}
    (out / "generation_config.json").write_text(json.dumps(generation, indent=2) + "\n")
    check_ids(model, out)


def check_ids(model: str, folder: Path) -> None:
    """Raises if a prompt of the load measurements has other ids than with our own tokenizer."""
    from transformers import AutoTokenizer

    theirs = AutoTokenizer.from_pretrained(folder)
    ours = Tokenizer.for_model(resolve(model).weights, None)
    template = ChatTemplate.for_tokenizer(ours)
    for number in range(NUM_PROMPTS):
        text = text_of(KINDS[number % len(KINDS)], number // len(KINDS), number)
        turns = [{"role": "system", "content": SYSTEM}, {"role": "user", "content": text}]
        found = theirs.apply_chat_template(turns, add_generation_prompt=True, tokenize=True, return_dict=True)
        wanted = template.render([Message(turn["role"], turn["content"]) for turn in turns]).ids
        if list(found["input_ids"]) != list(wanted):
            raise SystemExit(f"prompt {number} has other ids in {folder}")
    print(f"{NUM_PROMPTS} prompts have the same ids")


def write_weights(model: str, out: Path) -> None:
    import torch

    from quicksilver.model.files.checkpoint import load_model
    from tests.support.saved_model import save_model

    save_model(load_model(resolve(model).weights, dtype=torch.bfloat16), out)
    path = out / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"dtype": "bfloat16"}, indent=2) + "\n")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="coder-1.5b")
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--tokenizer", type=Path, help="a folder with converted tokenizer files")
    parser.add_argument("--only", choices=["tokenizer", "weights"])
    options = parser.parse_args()
    options.out.mkdir(parents=True, exist_ok=True)
    if options.only != "weights":
        if options.tokenizer is None:
            write_tokenizer(options.model, options.out)
        else:
            shutil.copytree(options.tokenizer, options.out, dirs_exist_ok=True)
    if options.only != "tokenizer":
        write_weights(options.model, options.out)


if __name__ == "__main__":
    main()
