"""Results of a job: measurements, the registered adapter, and its files in CSV and in the layout of PEFT."""

from __future__ import annotations

import csv
import io
import json
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import Any, TypeVar

import torch
from torch import Tensor

from quicksilver.accounts.stored_files import describe, write_file
from quicksilver.errors import InvalidRequest
from quicksilver.hub.files import ModelFiles
from quicksilver.model.adapters import Adapter, merge_skill, save_adapter
from quicksilver.text.tokenizer import Tokenizer
from quicksilver.training.export import canvas_tensors, low_rank_layers
from quicksilver.training.lora import num_lora_params
from quicksilver.training.network import Network
from quicksilver.training.pack import Document
from quicksilver.training.service import canvas_refresh
from quicksilver.training.service.examples import Example
from quicksilver.training.service.measure import draft_rates, losses, selectivity
from quicksilver.training.service.peft import from_peft, to_peft
from quicksilver.training.service.tasks import LoraRows
from quicksilver.tuning.jobs import EVENT, JobStore, TuningJob
from quicksilver.tuning.models import describe_model, register, result_file_id, tuned_name
from quicksilver.tuning.settings import TrainerSettings

COLUMNS = ("step", "train_loss", "train_mean_token_accuracy", "valid_loss", "valid_mean_token_accuracy")
PURPOSE = "fine-tune-results"

# Validation examples that are measured before and after training.
NUM_MEASURED = {"cpu": 128, "cuda": 4096}
Item = TypeVar("Item")
# Figures by name; `selectivity` is a curve.
Measured = dict[str, Any]
# Bytes per value of a stored adapter, and copies of it: the model, its two checkpoints and the archive.
VALUE_BYTES, NUM_COPIES = 2, 4


class Results:
    def __init__(
        self, jobs: JobStore, job: TuningJob, settings: TrainerSettings, network: Network, files: ModelFiles
    ) -> None:
        self._jobs, self._job, self._settings = jobs, job, settings
        self._network, self._files = network, files
        self.sha256 = ""
        # Pairs for canvas rows that are stored with the adapter; none without a refresh.
        self.on_canvas: Mapping[str, Tensor] = {}

    @cached_property
    def canvas(self) -> dict[str, Tensor] | None:
        """The canvas adapter of the base."""
        path, device = self._files.canvas, self._network.device
        return None if path is None else {name: each.to(device) for name, each in canvas_tensors(path).items()}

    @cached_property
    def stop_ids(self) -> tuple[int, ...]:
        return tuple(Tokenizer.for_model(self._files.weights, self._files.skill).eos_ids)

    def check_room(self, rank: int) -> None:
        """Raises before training if the project may not store what the job would leave."""
        # The pairs of a refresh are stored once.
        ranks = NUM_COPIES * rank + canvas_refresh.RANK
        needed = VALUE_BYTES * num_lora_params(self._network.config, ranks)
        if self._jobs.objects.num_bytes(self._job.owner) + needed > self._settings.stored_bytes:
            raise InvalidRequest(
                f"the results need {needed} bytes and this project may store {self._settings.stored_bytes}; "
                "delete files or models first",
                param="training_file",
                code="quota_exceeded",
            )

    def imported(self, content: bytes) -> dict[str, Tensor]:
        """The adapter of an uploaded archive."""
        tensors = from_peft(content, self._network.config)
        self.check_room(max(a.shape[0] for name, a in tensors.items() if name.endswith(".A")))
        return tensors

    def validated(self, validation: Sequence[Example]) -> list[Document]:
        """Documents whose loss is measured, drawn evenly."""
        return self._drawn([example.document for example in validation if example.label])

    def _drawn(self, items: Sequence[Item]) -> list[Item]:
        """As many as are measured."""
        return list(items[:: -(-len(items) // NUM_MEASURED[self._network.device.type]) or 1])

    def measured(
        self,
        task: LoraRows,
        validation: Sequence[Example],
        tensors: Mapping[str, Tensor] | None,
        known: tuple[float, float] | None = None,
    ) -> Measured:
        """Loss and token accuracy of the validation file, of judged answers their selectivity, and tokens per draft
        round on its prompts (without the file: on prompts of the training file). With `tensors` the adapter is merged
        into the network, so that comes last. `known`: loss and accuracy, where they have been measured."""
        found: Measured = {}
        if documents := self.validated(validation):
            loss, accuracy = known or losses(task, documents, tensors)
            found |= {"valid_loss": loss, "valid_mean_token_accuracy": accuracy}
        if self._job.method == "kto" and len({example.label for example in validation}) == 2:
            # In the order of their labels, so that as large a share of each is drawn.
            judged = sorted(validation, key=lambda example: example.label)
            found["selectivity"] = selectivity(task, self._drawn(judged), tensors)
        if tensors is not None:
            merge_skill(self._network.model, Adapter(low_rank_layers(tensors)))
        found |= self.draft_rates(task, validation)
        return {name: round(value, 5) if isinstance(value, float) else value for name, value in found.items()}

    def draft_rates(
        self, task: LoraRows, validation: Sequence[Example], added: Mapping[str, Tensor] | None = None
    ) -> dict[str, float]:
        """As `measure.draft_rates`, with pairs that are added to the canvas adapter."""
        documents = [example.document for example in validation if example.label]
        canvas = self.canvas
        if canvas is not None and added:
            canvas = canvas_refresh.with_pairs(canvas, added)
        asked = documents or [example.document for example in task.examples]
        return draft_rates(self._network, canvas, asked, self.stop_ids)

    def register(self, tensors: Mapping[str, Tensor], step: int = 0, is_proposed: bool = False) -> str:
        """Stores the adapter as a model of the project; its name."""
        reply = self._job.reply
        name = tuned_name(reply["model"], reply["user_provided_suffix"], self._job.id, step)
        rank = max(tensor.shape[0] for key, tensor in tensors.items() if key.endswith(".A"))
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "adapter.safetensors"
            adapter = Adapter(low_rank_layers(_plain(tensors)))
            if self.on_canvas:
                adapter.canvas = Adapter(low_rank_layers(_plain(self.on_canvas)))
            save_adapter(path, adapter, {}, bits=16)
            model = describe_model(path, name, reply["model"], rank, self._job.id, step)
            model = replace(model, is_proposed=is_proposed)
            with path.open("rb") as file:
                register(self._jobs.objects, self._job.owner, model, file)
        self.sha256 = model.sha256
        return name

    def write_files(self, tensors: Mapping[str, Tensor]) -> list[str]:
        """Ids of the metrics of all steps (CSV) and, of a trained adapter, of the archive in the layout of PEFT."""
        contents = {"metrics": ("step_metrics.csv", self._metrics())}
        if self._job.method != "import":
            archive = to_peft(_plain(tensors), self._network.config, self._job.reply["model"])
            contents["adapter"] = ("adapter.zip", archive)
        ids = []
        for kind, (filename, content) in contents.items():
            reply = {**describe(filename, PURPOSE, len(content)), "id": result_file_id(self._job.id, kind)}
            write_file(self._jobs.objects, self._job.owner, reply, io.BytesIO(content))
            ids.append(reply["id"])
        return ids

    def _metrics(self) -> bytes:
        rows: dict[int, dict[str, float]] = {}
        after = ""
        while found := self._jobs.objects.find(self._job.owner, EVENT, self._job.id, after=after, limit=500):
            for event in (json.loads(each.body) for each in found):
                if event["type"] == "metrics":
                    rows.setdefault(event["data"]["step"], {}).update(event["data"])
            after = found[-1].id
        text = io.StringIO()
        writer = csv.DictWriter(text, COLUMNS, extrasaction="ignore")
        writer.writeheader()
        writer.writerows(rows[step] for step in sorted(rows))
        return text.getvalue().encode()


def _plain(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    return {name: tensor.detach().to(torch.float32).cpu() for name, tensor in tensors.items()}
