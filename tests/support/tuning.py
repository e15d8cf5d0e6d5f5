"""A tiny base model on disk, a task that it can learn in seconds, and a store for its jobs."""

from __future__ import annotations

import json
from dataclasses import replace
from io import BytesIO
from pathlib import Path
from typing import Any

import torch

from quicksilver.accounts.objects import ObjectStore, open_local
from quicksilver.accounts.stored_files import describe, write_file
from quicksilver.hub.files import ModelFiles
from quicksilver.model.adapters import load_adapter, merge_skill, save_adapter
from quicksilver.model.files.checkpoint import load_model
from quicksilver.model.transformer import Transformer
from quicksilver.text.chat import ChatTemplate, Message
from quicksilver.text.tokenizer import Tokenizer
from quicksilver.training.evaluate import answers
from quicksilver.training.network import Network, as_written
from quicksilver.training.service.trainer import Trainer
from quicksilver.tuning.hyperparameters import checked
from quicksilver.tuning.jobs import JobStore, TuningJob, new_job
from quicksilver.tuning.models import adapter_file, find_model
from quicksilver.tuning.settings import TrainerSettings
from tests.support.canvas_adapters import new_canvas
from tests.support.fakes import tokenizer_json
from tests.support.saved_model import save_model
from tests.support.tiny import TINY

CONFIG = replace(TINY, dim=64, head_dim=16, ffn_dim=128, vocab_size=273, context_len=1024)
# Without a system message: byte tokens make prompts long.
TEMPLATE = (
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
COLOURS = ("red", "blue", "pink", "gold", "grey", "lime", "cyan", "teal", "plum", "rust")


def write_base(folder: Path, has_canvas: bool = True) -> ModelFiles:
    """Random weights with a byte tokenizer and an untrained canvas adapter."""
    torch.manual_seed(0)
    model = Transformer(CONFIG)
    for parameter in model.parameters():
        if parameter.dim() > 1:
            torch.nn.init.normal_(parameter, std=0.2)
    save_model(model, folder)
    (folder / "tokenizer.json").write_text(json.dumps(tokenizer_json()))
    (folder / "tokenizer_config.json").write_text(json.dumps({"chat_template": TEMPLATE}))
    if has_canvas:
        (folder / "adapters").mkdir(exist_ok=True)
        canvas = new_canvas(CONFIG, rank=4, max_canvas_len=16, seed=0, token_embedding=model.tokens.weight)
        save_adapter(folder / "adapters" / "canvas.safetensors", canvas, {})
    return ModelFiles.in_folder("toy", folder)


def question(number: int) -> str:
    return f"colour {number}?"


def chat_lines(count: int = 20) -> bytes:
    """A fixed colour for each of ten numbers."""
    rows = [
        {
            "messages": [
                {"role": "user", "content": question(i % 10)},
                {"role": "assistant", "content": COLOURS[i % 10]},
            ]
        }
        for i in range(count)
    ]
    return b"".join(json.dumps(row).encode() + b"\n" for row in rows)


def exact_matches(files: ModelFiles, path: Path | None) -> int:
    """Questions of the toy task that the model answers exactly."""
    tokenizer = Tokenizer.load(files.weights)
    template = ChatTemplate.for_tokenizer(tokenizer)
    model = load_model(files.weights)
    if path is not None:
        merge_skill(model, load_adapter(path))
    prompts = [list(template.render((Message("user", question(i)),)).ids) for i in range(10)]
    found = answers(Network(model, as_written), prompts, 12, tokenizer.eos_ids)
    return sum(
        tokenizer.decode([t for t in ids if t not in tokenizer.eos_ids]) == COLOURS[i] for i, ids in enumerate(found)
    )


class Shop:
    """A store with jobs, and a trainer for them."""

    def __init__(self, home: Path, files: ModelFiles, **changes: Any) -> None:
        self.objects: ObjectStore = open_local(home / "objects.db")
        self.jobs = JobStore(self.objects)
        self.settings = TrainerSettings(home, {files.name: files}, device="cpu", threads=1, **changes)

    def upload(self, content: bytes, purpose: str = "fine-tune") -> str:
        reply = describe("data.jsonl", purpose, len(content))
        write_file(self.objects, "", reply, BytesIO(content))
        return str(reply["id"])

    def create(self, content: bytes, method: str = "supervised", **fields: Any) -> TuningJob:
        """`hyperparameters`, `model` and the fields of `new_job`."""
        chosen = checked(method, fields.pop("hyperparameters", {}))
        if (validation := fields.pop("validation", None)) is not None:
            fields["validation_file"] = self.upload(validation)
        described = {"type": method, method: {"hyperparameters": chosen}}
        key_id = fields.pop("key_id", None)
        model = fields.pop("model", "toy")
        job = TuningJob("", new_job(model, self.upload(content), described, **{"seed": 3, **fields}), key_id)
        self.jobs.create(job)
        return job

    def run(self, process: str = "here", **changes: Any) -> None:
        """Works on the oldest open job."""
        job = self.jobs.claim(process, self.settings.models)
        assert job is not None
        Trainer(self.jobs, self.settings, process, **changes).run(job)

    def reply(self, job: TuningJob) -> dict[str, Any]:
        found = self.jobs.get("", job.id)
        assert found is not None
        return found.reply

    def events(self, job: TuningJob) -> list[dict[str, Any]]:
        found = self.objects.find("", "fine_tuning_event", job.id, limit=1000) or []
        return [json.loads(each.body) for each in found]


def stored_adapter(shop: Shop, name: str) -> Path:
    """The file of a tuned model's adapter."""
    model = find_model(shop.objects, "", name)
    assert model is not None
    return adapter_file(shop.objects, "", model, shop.settings.home / "adapters")
