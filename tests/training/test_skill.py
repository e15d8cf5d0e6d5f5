"""The skill task: what a sample shows, and which tokens are targets."""

from __future__ import annotations

import io
import json
from pathlib import Path

import torch

from quicksilver.training.batches import RowStore
from quicksilver.training.journal import Journal
from quicksilver.training.loop import Loop
from quicksilver.training.network import Network
from quicksilver.training.pack import pack
from quicksilver.training.recipe import Optim, Skill
from quicksilver.training.skill import SkillTask, next_token_targets
from quicksilver.training.toy_task import PAD, verses


def _store() -> RowStore:
    return RowStore(pack(verses(64), 64, PAD, 96), 4, 0, torch.device("cpu"))


def test_sample_every_records_the_answer_and_the_proposals(network: Network, tmp_path: Path) -> None:
    optim = Optim(lr=2e-2, max_steps=2, warmup_steps=1, sample_every=1)
    task = SkillTask(network, _store(), Skill(rank=4, rows_per_batch=4, head_chunk=64, optim=optim), [3, 4])
    Loop(task, optim, tmp_path, Journal(tmp_path, "skill", io.StringIO())).run()
    lines = [json.loads(line) for line in (tmp_path / "skill.jsonl").read_text().splitlines()]
    samples = [line["sample"] for line in lines if "sample" in line]
    assert len(samples) == 2
    target, weight = next_token_targets(_store().batch(0), 1.0)
    row_len = _store().batch(0).token_ids.shape[1]
    answer = target[:row_len][weight[:row_len] > 0][:48].tolist()
    assert str(answer) in samples[0]
    assert "model" in samples[0]


def test_the_last_token_of_a_document_has_no_target() -> None:
    batch = _store().batch(0)
    weight = next_token_targets(batch, 1.0)[1].view_as(batch.token_ids)
    is_last = batch.doc_id != batch.doc_id.roll(-1, dims=1)
    assert not weight[is_last].any()
    assert not weight[:, -1].any()
