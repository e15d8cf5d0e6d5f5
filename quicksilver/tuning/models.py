"""Tuned models as stored objects: a description, and the adapter file in pieces. Blocking.

A tuned model is named `ft:BASE:SUFFIX:ID` and belongs to one project; no other project can find it. Its adapter is a
safetensors file in the format of `quicksilver.model.files.adapter_file`, relative to the base with its skill merged.
"""

from __future__ import annotations

import hashlib
import os
import re
import tempfile
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import IO, TYPE_CHECKING

import orjson

from quicksilver.accounts.records import StoredObject
from quicksilver.accounts.stored_files import FILE, PIECE, PIECE_BYTES, read_pieces
from quicksilver.errors import InvalidRequest
from quicksilver.tuning.jobs import CHECKPOINT, TuningJob

if TYPE_CHECKING:
    from quicksilver.accounts.objects import ObjectStore

MODEL = "tuned_model"
PREFIX = "ft:"
_SUFFIX = re.compile(r"[A-Za-z0-9_-]{1,64}")
BLOCK_BYTES = 1 << 20
# Below the home folder: copies of adapters, by their hash. Those of tuned models have a file with the name TUNED_MARK.
ADAPTERS, TUNED_MARK = "adapters", "tuned_model"
# What a job leaves beside its model, as parts of the ids of its result files.
RESULT_KINDS = ("metrics", "adapter")


@dataclass(frozen=True, slots=True)
class TunedModel:
    """`sha256` is that of the adapter file: it changes whenever the weights do."""

    id: str
    base: str
    sha256: str
    num_bytes: int
    rank: int
    job_id: str
    created_at: int
    # The step of a checkpoint; 0 for the model at the end of its job.
    step: int = 0
    # It is neither listed nor served until the proposal is accepted.
    is_proposed: bool = False


def tuned_name(base: str, suffix: str | None, job_id: str, step: int = 0) -> str:
    """`ft:BASE:SUFFIX:ID`; a checkpoint has `:ckpt-step-N` after it."""
    name = f"{PREFIX}{base}:{suffix or ''}:{job_id.removeprefix('ftjob-')[:12]}"
    return f"{name}:ckpt-step-{step}" if step else name


def check_suffix(suffix: str | None) -> None:
    if suffix is not None and _SUFFIX.fullmatch(suffix) is None:
        raise InvalidRequest("suffix: up to 64 letters, digits, '-' and '_'", param="suffix")


def register(objects: ObjectStore, owner: str, model: TunedModel, adapter: IO[bytes]) -> None:
    """Stores the adapter, then the description: a model that can be found is complete. A second call replaces both."""
    adapter.seek(0)
    for number, piece in enumerate(iter(lambda: adapter.read(PIECE_BYTES), b"")):
        objects.put(owner, [StoredObject(PIECE, f"{model.id}/{number:06d}", piece, model.id)])
    objects.put(owner, [StoredObject(MODEL, model.id, orjson.dumps(asdict(model)), created_at=model.created_at)])


def describe_model(path: Path, name: str, base: str, rank: int, job_id: str, step: int = 0) -> TunedModel:
    """The description of an adapter file on disk."""
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while block := file.read(BLOCK_BYTES):
            digest.update(block)
    size = path.stat().st_size
    return TunedModel(name, base, digest.hexdigest(), size, rank, job_id, int(time.time()), step)


def find_model(objects: ObjectStore, owner: str, name: str) -> TunedModel | None:
    """None also for a model of another project."""
    stored = objects.get(owner, MODEL, name) if name.startswith(PREFIX) else None
    return None if stored is None else TunedModel(**orjson.loads(stored.body))


def list_models(objects: ObjectStore, owner: str) -> Iterator[TunedModel]:
    """The models of a project, oldest first."""
    after = ""
    while found := objects.find(owner, MODEL, after=after, limit=100):
        yield from (TunedModel(**orjson.loads(each.body)) for each in found)
        after = found[-1].id


def delete_model(objects: ObjectStore, owner: str, name: str) -> bool:
    return objects.delete(owner, MODEL, name)


def result_file_id(job_id: str, kind: str) -> str:
    return f"file-{job_id}-{kind}"


def delete_results(objects: ObjectStore, job: TuningJob) -> None:
    """Deletes the final model of a job that did not succeed, with its checkpoint and its result files. Checkpoints of
    earlier epochs stay."""
    name = tuned_name(job.reply["model"], job.reply["user_provided_suffix"], job.id)
    for stored in objects.find(job.owner, CHECKPOINT, job.id) or []:
        if orjson.loads(stored.body)["fine_tuned_model_checkpoint"] == name:
            objects.delete(job.owner, CHECKPOINT, stored.id)
    delete_model(objects, job.owner, name)
    for kind in RESULT_KINDS:
        objects.delete(job.owner, FILE, result_file_id(job.id, kind))


def adapter_path(folder: Path, model: TunedModel) -> Path:
    """Where `adapter_file` puts the adapter: in a folder named by its hash."""
    return folder / model.sha256 / "adapter.safetensors"


def adapter_file(objects: ObjectStore, owner: str, model: TunedModel, folder: Path) -> Path:
    """The adapter as a file below `folder`. It is copied from the store where it is missing, and checked."""
    path = adapter_path(folder, model)
    if path.exists():
        return path
    path.parent.mkdir(parents=True, exist_ok=True)
    (path.parent / TUNED_MARK).touch()
    digest = hashlib.sha256()
    with tempfile.NamedTemporaryFile(dir=path.parent, delete=False) as part:
        for piece in read_pieces(objects, owner, model.id):
            digest.update(piece)
            part.write(piece)
    if digest.hexdigest() != model.sha256:
        os.unlink(part.name)
        raise InvalidRequest(f"the stored adapter of {model.id} is damaged", param="model")
    os.replace(part.name, path)
    return path
