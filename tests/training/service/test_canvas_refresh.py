"""Refresh of the canvas adapter: where drafts got worse, what it raises, what it costs, and that no text changes."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from quicksilver.accounts.service import AdminService
from quicksilver.accounts.training_charges import TrainingCharges
from quicksilver.adapters import AdapterRef
from quicksilver.core import Request
from quicksilver.hub.files import ModelFiles
from quicksilver.model.adapters import CanvasAdapter, attach_canvas, load_adapter, merge_skill, save_adapter
from quicksilver.model.files.checkpoint import load_model
from quicksilver.model.transformer import Transformer
from quicksilver.text.chat import ChatTemplate, Message
from quicksilver.text.tokenizer import Tokenizer
from quicksilver.training.canvas import CanvasTask
from quicksilver.training.export import canvas_tensors
from quicksilver.training.network import Network, as_written
from quicksilver.training.pack import Document
from quicksilver.training.service import canvas_refresh
from quicksilver.tuning.jobs import TuningJob
from quicksilver.tuning.models import adapter_file, find_model, list_models
from tests.accounts.test_training_charges import new_key, spent
from tests.support.row_adapters import saved
from tests.support.saved_model import save_model
from tests.support.tiny import answers, decode_params, finish_all, tiny_engine
from tests.support.tuning import Shop, question, write_base
from tests.training.service.test_trainer import Killed, StopAfter, killed

CHOSEN = {"n_epochs": 3, "batch_size": 5, "rank": 4, "learning_rate_multiplier": 40}
NUM_STEPS = 12
ANSWER = "lime or plum"


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> ModelFiles:
    """A model that repeats the last token, a line break, with a canvas adapter that drafts line breaks."""
    files = write_base(tmp_path_factory.mktemp("repeating"))
    assert files.canvas is not None
    model, canvas = load_model(files.weights), load_adapter(files.canvas)
    assert isinstance(canvas, CanvasAdapter)
    with torch.no_grad():
        for layer in model.layers:
            layer.o.weight.zero_()  # type: ignore[union-attr, operator]
            layer.down.weight.zero_()  # type: ignore[union-attr, operator]
        canvas.mask_embedding[:] = model.tokens.weight[Tokenizer.load(files.weights).encode("\n")[-1]]
    save_model(model, files.weights)
    save_adapter(files.canvas, canvas, {})
    return files


@pytest.fixture(autouse=True, scope="module")
def short() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(canvas_refresh, "LEARNING_RATE", 1.5e-2)
        yield


def lines() -> bytes:
    """One answer to every question."""
    rows = [
        {"messages": [{"role": "user", "content": question(i)}, {"role": "assistant", "content": ANSWER}]}
        for i in range(20)
    ]
    return b"".join(json.dumps(row).encode() + b"\n" for row in rows)


def served(base: ModelFiles) -> Transformer:
    model = load_model(base.weights)
    assert base.canvas is not None
    canvas = load_adapter(base.canvas)
    assert isinstance(canvas, CanvasAdapter)
    attach_canvas(model, canvas)
    return model


def decoded(model: Transformer, name: str, base: ModelFiles, ref: AdapterRef | None = None) -> tuple[list[Any], int]:
    """Answers to three questions, and the forwards that they took."""
    tokenizer = Tokenizer.load(base.weights)
    template, engine = ChatTemplate.for_tokenizer(tokenizer), tiny_engine(model=model)
    params = decode_params(name, canvas_len=16, max_new_tokens=20, stop_ids=tuple(tokenizer.eos_ids))
    for i in range(3):
        prompt = tuple(template.render((Message("user", question(i)),)).ids)
        engine.add(Request(str(i), prompt, params, adapter=ref))
    deltas = finish_all(engine)
    usages = [parts[-1].usage for parts in deltas.values()]
    return [answers(deltas)[str(i)] for i in range(3)], sum(usage.forwards for usage in usages if usage is not None)


@pytest.mark.parametrize(
    ("before", "after", "limit", "is_needed"),
    [(5.0, 4.4, 17.0, True), (5.0, 4.6, 17.0, False), (5.0, 6.0, 17.0, False), (12.0, 4.0, 4.0, False)],
    ids=["fell", "fell a little", "rose", "shorter answers, perfect drafts"],
)
def test_a_refresh_follows_a_fall_of_more_than_a_tenth(
    before: float, after: float, limit: float, is_needed: bool
) -> None:
    old, new = {"tokens_per_round": before}, {"tokens_per_round": after, "max_tokens_per_round": limit}
    assert canvas_refresh.is_needed(old, new) == is_needed
    assert not canvas_refresh.is_needed({}, new)
    assert not canvas_refresh.is_needed(old, {})


def test_a_refresh_raises_acceptance_and_changes_no_text(shop: Shop, base: ModelFiles, tmp_path: Path) -> None:
    job = shop.create(lines(), hyperparameters=CHOSEN)
    shop.run()
    reply = shop.reply(job)
    assert reply["status"] == "succeeded", reply["error"]
    facts = reply["quicksilver"]
    refresh = facts["canvas_refresh"]
    assert refresh["is_served"]
    assert refresh["before"] < 0.9 * facts["before"]["tokens_per_round"]
    assert refresh["after"] == facts["after"]["tokens_per_round"] > 1.5 * refresh["before"]
    messages = [event["message"] for event in shop.events(job)]
    assert sum("Canvas refresh, step" in message for message in messages) >= 3
    assert any(message.startswith("Refreshed the canvas adapter: ") for message in messages)
    # Served: the stored adapter, the same without its pairs for canvas rows, and the tuned model merged.
    model = find_model(shop.objects, "", reply["fine_tuned_model"])
    assert model is not None
    path = adapter_file(shop.objects, "", model, shop.settings.home / "adapters")
    tuned = load_adapter(path)
    assert tuned.canvas is not None
    merged = served(base)
    merge_skill(merged, tuned)
    text, _ = decoded(merged, "ar", base)
    tuned.canvas = None
    without = saved(tmp_path, tuned, "without")
    plain, with_refresh = served(base), AdapterRef(model.sha256, str(path))
    assert decoded(plain, "ar", base, with_refresh)[0] == text
    (old_text, old_forwards), (new_text, new_forwards) = (
        decoded(plain, "verify", base, ref) for ref in (without, with_refresh)
    )
    assert old_text == new_text == text
    assert new_forwards < old_forwards


def test_the_model_is_stored_once_after_its_refresh(shop: Shop) -> None:
    """A model whose adapter is replaced could be loaded while its pieces do not fit its hash."""
    job, found = shop.create(lines(), hyperparameters=CHOSEN), list[list[str]]()

    def watch(job: TuningJob, step: int, total: int, scalars: Any) -> None:
        if "accuracy" not in scalars:
            found.append([model.id for model in list_models(shop.objects, "") if not model.step])

    shop.run(watch=watch)
    assert found
    assert not any(found)
    name = shop.reply(job)["fine_tuned_model"]
    assert find_model(shop.objects, "", name) is not None
    checkpoints = [json.loads(each.body) for each in shop.objects.find("", "fine_tuning_checkpoint", job.id) or []]
    assert [each["step_number"] for each in checkpoints] == [4, 8, NUM_STEPS]
    assert checkpoints[-1]["fine_tuned_model_checkpoint"] == name


def test_clean_rows_are_computed_once_and_equal_those_of_every_step(base: ModelFiles) -> None:
    network = Network(load_model(base.weights), as_written)
    ids = np.arange(40) % 200
    documents = [Document(ids + i, ids >= 9, np.zeros(40, dtype=bool)) for i in range(20)]
    assert base.canvas is not None
    task = canvas_refresh.refresh_task(network, canvas_tensors(base.canvas), documents, seed=1)
    batch = task.store.batch(0)
    kept, again = task.clean_rows(batch), task.clean_rows(batch)
    plain = CanvasTask.clean_rows(task, batch)
    assert torch.equal(kept[0], again[0])
    torch.testing.assert_close(kept[0], plain[0])
    for one, other in zip(kept[1].keys + kept[1].values, plain[1].keys + plain[1].values, strict=True):
        torch.testing.assert_close(one, other)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(network, "forward", None)
        task.clean_rows(batch)


def test_an_interrupted_refresh_ends_in_the_same_bytes_and_is_charged_once(
    paid: tuple[Shop, AdminService, TrainingCharges], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(canvas_refresh.NUM_STEPS, "cpu", 6)
    shop, admin, charges = paid
    org, key = new_key(admin)
    whole = shop.create(lines(), hyperparameters=CHOSEN)
    shop.run()
    cut = shop.create(lines(), hyperparameters=CHOSEN, key_id=key)
    # Stopped after a step of the refresh; then killed while what was trained is charged.
    stop = StopAfter(NUM_STEPS + 2)
    shop.run("first", charges=charges, signals=stop.signals, watch=stop)
    trained = spent(admin, org)
    assert trained > 0
    stop = StopAfter(2)

    def kill(*_: Any) -> None:
        raise Killed

    with monkeypatch.context() as patch:
        patch.setattr(charges, "charge", kill)
        killed(shop, cut, charges=charges, signals=stop.signals, watch=stop)
    assert spent(admin, org) == trained
    shop.run("last", charges=charges)
    replies = [shop.reply(job) for job in (whole, cut)]
    assert [reply["status"] for reply in replies] == ["succeeded"] * 2, replies
    assert replies[0]["quicksilver"]["adapter_sha256"] == replies[1]["quicksilver"]["adapter_sha256"]
    refreshes = [reply["quicksilver"]["canvas_refresh"] for reply in replies]
    assert refreshes[0] == refreshes[1]
    assert trained < spent(admin, org) == replies[1]["trained_tokens"]


def test_a_budget_that_ends_with_the_training_leaves_the_refresh_out(
    paid: tuple[Shop, AdminService, TrainingCharges],
) -> None:
    shop, admin, charges = paid
    # The training takes 2,490.
    org, key = new_key(admin, credits=2500)
    job = shop.create(lines(), hyperparameters=CHOSEN, key_id=key)
    shop.run(charges=charges)
    reply = shop.reply(job)
    assert reply["status"] == "succeeded", reply["error"]
    assert spent(admin, org) == reply["trained_tokens"] == 2490
    assert "canvas_refresh" not in reply["quicksilver"]
    assert any("is not refreshed" in event["message"] for event in shop.events(job) if event["level"] == "warn")
