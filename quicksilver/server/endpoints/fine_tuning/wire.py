"""Body and replies of `/v1/fine_tuning/jobs`."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Field
from typing_extensions import TypedDict

from quicksilver.server.http.fields import WHOLE, FreeObject, Metadata, ModelName, Wire
from quicksilver.tuning.hyperparameters import BOUNDS

Auto = Literal["auto"]


def _within(name: str) -> Any:
    return Field(ge=BOUNDS[name].least, le=BOUNDS[name].most)


Epochs = Annotated[int, _within("n_epochs"), WHOLE]
BatchSize = Annotated[int, _within("batch_size"), WHOLE]
Rank = Annotated[int, _within("rank"), WHOLE]
LearningRate = Annotated[float, _within("learning_rate_multiplier")]
Beta = Annotated[float, _within("beta")]
FileId = Annotated[str, Field(min_length=1, max_length=256)]


class HyperparametersBody(Wire):
    """`rank` is an extension. `beta` is read for dpo and kto."""

    n_epochs: Epochs | Auto | None = None
    batch_size: BatchSize | Auto | None = None
    learning_rate_multiplier: LearningRate | Auto | None = None
    beta: Beta | Auto | None = None
    rank: Rank | Auto | None = None


class MethodOptions(Wire):
    hyperparameters: HyperparametersBody | None = None


class MethodBody(Wire):
    """supervised, dpo, kto, or import: the training file is an adapter in the layout of PEFT, as a zip archive."""

    type: Annotated[str, Field(max_length=64)]
    supervised: MethodOptions | None = None
    dpo: MethodOptions | None = None
    kto: MethodOptions | None = None


class JobBody(Wire):
    model: Annotated[ModelName, Field(min_length=1)]
    training_file: FileId
    validation_file: FileId | None = None
    suffix: Annotated[str, Field(min_length=1, max_length=64)] | None = None
    seed: Annotated[int, Field(ge=0, le=2**31 - 1), WHOLE] | None = None
    metadata: Metadata | None = None
    method: MethodBody | None = None
    # The older place of the hyperparameters of a supervised job.
    hyperparameters: HyperparametersBody | None = None
    # None is supported here.
    integrations: Annotated[list[FreeObject], Field(max_length=0)] | None = None


class JobError(TypedDict):
    code: str
    message: str
    param: str | None


class JobReply(TypedDict):
    id: str
    object: Literal["fine_tuning.job"]
    created_at: int
    error: JobError | None
    fine_tuned_model: str | None
    finished_at: int | None
    hyperparameters: dict[str, Any]
    model: str
    organization_id: str
    result_files: list[str]
    seed: int
    status: Literal["validating_files", "queued", "running", "paused", "succeeded", "proposed", "failed", "cancelled"]
    trained_tokens: int | None
    training_file: str
    validation_file: str | None
    estimated_finish: int | None
    integrations: list[Any]
    metadata: dict[str, str] | None
    method: dict[str, Any]
    user_provided_suffix: str | None
    # Extension: progress, what was measured before and after, the SHA-256 of the adapter.
    quicksilver: dict[str, Any]
