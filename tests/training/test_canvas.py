from __future__ import annotations

import io
import itertools
from pathlib import Path

import numpy as np
import pytest
import torch

from quicksilver.errors import InvalidRequest
from quicksilver.training.batches import RowStore
from quicksilver.training.canvas import MASKS, CanvasTask
from quicksilver.training.decode import BatchDecoder, CanvasWeights
from quicksilver.training.export import export_adapter, skill_tensors
from quicksilver.training.generate import Generator, PromptSet
from quicksilver.training.journal import Journal
from quicksilver.training.loop import CHECKPOINT, Loop
from quicksilver.training.lora import cut_rank
from quicksilver.training.network import Network
from quicksilver.training.pack import PackedRows, pack
from quicksilver.training.recipe import Canvas, Generate, Optim, Skill
from quicksilver.training.skill import RESERVED, SkillTask
from quicksilver.training.toy_task import END, PAD, verses

PROMPTS = [[1, 3 + which] for which in range(4)]


def recited(network: Network, folder: Path) -> Network:
    """The tiny network after memorising its verses, with the adapter merged."""
    optim = Optim(lr=2e-2, max_steps=90, warmup_steps=5, log_every=1000)
    spec = Skill(rank=16, rows_per_batch=8, head_chunk=256, optim=optim)
    store = RowStore(pack(verses(256), 64, PAD, 96), 8, 0, torch.device("cpu"))
    task = SkillTask(network, store, spec, [1, 3, 4, 5, 6])
    result = Loop(task, optim, folder, Journal(folder, "skill", io.StringIO())).run()
    for index, layer in enumerate(network.model.layers):
        for name, linear in zip(("qkv", "o", "gu", "dn"), (layer.qkv, layer.o, layer.gate_up, layer.down), strict=True):
            linear.weight.data += result[f"{index}.{name}.B"] @ result[f"{index}.{name}.A"]
    network.model.tokens.weight.data[task.reserved_ids] = result[RESERVED]
    return network


def prompt_set() -> PromptSet:
    flat = np.array(PROMPTS).flatten()
    return PromptSet(flat, np.arange(0, 9, 2), np.ones(4, dtype=np.int64), np.zeros(4, dtype=np.int64))


def generated(network: Network) -> PackedRows:
    spec = Generate(batch=16, row_len=64, max_new_tokens=20, greedy_share=0.5)
    return Generator(network, prompt_set(), spec, END).round()


def test_prompts_that_were_answered_before_come_last(network: Network) -> None:
    firsts = []
    for skip in range(4):
        spec = Generate(batch=1, row_len=16, max_new_tokens=4, skip=skip)
        firsts.append(tuple(Generator(network, prompt_set(), spec, END).round().token_ids[0, :2].tolist()))
    assert sorted(firsts) == sorted(map(tuple, PROMPTS))


def test_canvas_training_raises_acceptance_and_verify_stays_exact(network: Network, tmp_path: Path) -> None:
    network = recited(network, tmp_path / "skill")
    optim = Optim(lr=1.5e-2, max_steps=150, warmup_steps=5, log_every=1000)
    spec = Canvas(rank=8, canvas_lens=(6,), canvas_rows=48, max_canvas_len=8, rows_per_batch=8, optim=optim)
    spec = Canvas(**{**{f: getattr(spec, f) for f in spec.__slots__}, "head_chunk": 128, "revealed_share": 0.1})
    store = RowStore(generated(network), 8, 0, torch.device("cpu"))
    task = CanvasTask(network, store, spec, lambda ids: " ".join(map(str, ids)))
    decoder = BatchDecoder(network, PROMPTS, 20, [END])
    ar = decoder.ar()
    rates = []
    for _ in range(2):
        weights = CanvasWeights(task.parameters, task.parameters[MASKS])
        verified = decoder.verify(weights, 6)
        assert [verified.answer(i) for i in range(4)] == [ar.answer(i) for i in range(4)]
        rates.append(float(verified.num_tokens.sum() / verified.num_rounds.sum()))
        if len(rates) == 1:
            Loop(task, optim, tmp_path / "canvas", Journal(tmp_path, "canvas", io.StringIO())).run()
    assert rates[1] > rates[0] + 0.7
    assert "draft" in task.sample()


def test_generation_restarts_every_prompt_with_a_clear_view(network: Network, tmp_path: Path) -> None:
    network = recited(network, tmp_path)
    rows = generated(network)
    answers = {tuple(p): BatchDecoder(network, [p], 20, [END]).ar().answer(0) for p in PROMPTS}
    row = 0  # prompts of an even number are greedy at a share of one half
    starts = np.flatnonzero(rows.is_start[row])
    for begin, end in itertools.pairwise(starts):
        ids = rows.token_ids[row, begin:end].tolist()
        assert not rows.is_answer[row, begin : begin + 2].any()
        assert rows.is_answer[row, begin + 2 : end].all()
        assert ids[2:] == answers[tuple(ids[:2])][: len(ids) - 2]


def test_a_step_is_replayed_from_its_number(network: Network, tmp_path: Path) -> None:
    store = RowStore(pack(verses(64), 64, PAD, 96), 4, 0, torch.device("cpu"))
    spec = Canvas(rank=4, canvas_lens=(4, 8), canvas_rows=16, max_canvas_len=8, rows_per_batch=4, head_chunk=64)
    losses = [float(CanvasTask(network, store, spec, str).step(5).loss) for _ in range(2)]
    assert losses[0] == losses[1]


def test_a_warm_start_keeps_the_strongest_directions() -> None:
    generator = torch.Generator().manual_seed(5)
    a, b = torch.randn(6, 40, generator=generator), torch.randn(30, 6, generator=generator)
    b[:, 3:] *= 0.01
    cut = cut_rank({"0.o.A": a, "0.o.B": b, MASKS: torch.ones(2, 3)}, 3)
    assert cut["0.o.A"].shape == (3, 40)
    assert cut["0.o.B"].shape == (30, 3)
    lost = torch.linalg.matrix_norm(cut["0.o.B"] @ cut["0.o.A"] - b @ a)
    best = torch.linalg.svdvals(b @ a)[3:].norm()
    assert torch.isclose(lost, best, rtol=1e-3), "no product of rank 3 is nearer"
    assert torch.equal(cut[MASKS], torch.ones(2, 3))


def test_a_skill_continues_from_its_file(network: Network, tmp_path: Path) -> None:
    optim = Optim(lr=2e-2, max_steps=6, warmup_steps=1, log_every=1000)
    spec = Skill(rank=4, rows_per_batch=8, head_chunk=256, optim=optim)
    store = RowStore(pack(verses(64), 64, PAD, 96), 8, 0, torch.device("cpu"))
    first = SkillTask(network, store, spec, [1, 3])
    Loop(first, optim, tmp_path, Journal(tmp_path, "skill", io.StringIO())).run()
    file = tmp_path / "skill.safetensors"
    export_adapter(tmp_path / CHECKPOINT, file, 16, {}, torch.tensor([1, 3]))
    second = SkillTask(network, store, spec, [1, 3])
    before = second.loss(store.batch(0)).detach()
    second.warm_start(skill_tensors(file, second.reserved_ids))
    after = second.loss(store.batch(0)).detach()
    assert torch.isclose(after, first.loss(store.batch(0)).detach(), rtol=1e-3)
    assert after < before
    with pytest.raises(InvalidRequest, match="other reserved tokens"):
        skill_tensors(file, torch.tensor([1, 4]))


def test_a_warm_start_of_the_same_rank_is_taken_as_it_is() -> None:
    tensors = {"0.o.A": torch.randn(4, 8), "0.o.B": torch.randn(8, 4)}
    assert all(torch.equal(value, tensors[name]) for name, value in cut_rank(tensors, 4).items())
