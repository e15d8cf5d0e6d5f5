"""The stages of a recipe, each a function of (run): reads what earlier stages left in the run's folder, writes its own.

A stage whose result is there is skipped, so an interrupted run goes on where it stopped. Data preparation is imported
only when it runs: the other stages need neither tokenizer code nor text.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from quicksilver.errors import InvalidRequest
from quicksilver.model.transformer import Transformer
from quicksilver.training import evaluate as measures
from quicksilver.training.batches import RowStore
from quicksilver.training.canvas import MASKS, CanvasTask
from quicksilver.training.decode import CanvasWeights
from quicksilver.training.export import export_canvas, export_skill, load_base, load_canvas_tensors
from quicksilver.training.generate import Generator, PromptSet, rounds
from quicksilver.training.journal import Journal
from quicksilver.training.loop import Loop
from quicksilver.training.network import Network
from quicksilver.training.pack import PackedRows, join_rows
from quicksilver.training.prepared import EVAL_PROMPTS, HELD, PROMPTS, TRAIN, Facts
from quicksilver.training.recipe import Recipe
from quicksilver.training.skill import SkillTask

GENERATED = "generated.safetensors"
SKILL, CANVAS = "skill.safetensors", "canvas.safetensors"


@dataclass(frozen=True, slots=True)
class Run:
    """One recipe at work in one folder."""

    recipe: Recipe
    folder: Path
    data: Path
    """Where the prepared files lie."""
    base: Path | None
    """The frozen parent's weights; None where the recipe asks for a random one."""
    device: torch.device

    def journal(self, stage: str) -> Journal:
        return Journal(self.folder / "log", stage)

    def network(self, with_skill: bool) -> Network:
        """The parent on the device, with the recipe's (or this run's) skill adapter merged if asked for."""
        skill = Path(self.recipe.base.skill) if self.recipe.base.skill else self.folder / SKILL
        dtype = torch.bfloat16 if self.recipe.base.dtype == "bfloat16" else torch.float32
        model: Transformer = load_base(self.base, skill if with_skill and skill.exists() else None)
        return Network(model.to(self.device, dtype).eval())

    def decode(self, token_ids: list[int]) -> str:
        return _decoder(self.base)(token_ids)


def prepare(run: Run) -> None:
    if (run.data / TRAIN).exists():
        return
    from quicksilver.training.prepare import prepare_data

    prepare_data(run.recipe.data, run.base, run.data, run.journal("prepare"))


def skill(run: Run) -> None:
    spec, journal, facts = run.recipe.skill, run.journal("skill"), Facts.load(run.data)
    network = run.network(with_skill=False)
    rows = PackedRows.load(run.data / TRAIN)
    journal.say(f"{rows.num_rows} rows of {rows.row_len}, {facts.answer_tokens / 1e6:.1f} M answer tokens")
    store = RowStore(rows, spec.rows_per_batch, spec.optim.seed, run.device)
    task = SkillTask(network, store, spec, sorted(set(facts.reserved.values())))
    result = Loop(task, spec.optim, run.folder / "skill", journal).run()
    export_skill(run.folder / SKILL, run.recipe, result, task.reserved_ids, facts, run.base)
    journal.say(f"wrote {SKILL}, {(run.folder / SKILL).stat().st_size / 1e6:.2f} MB")


def generate(run: Run) -> None:
    target = run.folder / GENERATED
    if target.exists():
        return
    spec, journal, facts = run.recipe.generate, run.journal("generate"), Facts.load(run.data)
    network = run.network(with_skill=True)
    generator = Generator(network, PromptSet.load(run.data / PROMPTS), spec, facts.end_id)
    made: list[PackedRows] = []
    for number, rows in enumerate(rounds(generator, spec), 1):
        made.append(rows)
        journal.report(number, {"tokens": rows.token_ids.size, "generated": float(rows.is_answer.mean())})
    join_rows(made).save(target)
    journal.say(f"{sum(r.token_ids.size for r in made) / 1e6:.1f} M tokens, {generator.prompts_used} prompts used")
    journal.say("sample: " + run.decode(made[-1].token_ids[0][:200].tolist()))


def canvas(run: Run) -> None:
    spec, journal, facts = run.recipe.canvas, run.journal("canvas"), Facts.load(run.data)
    network = run.network(with_skill=True)
    store = RowStore(PackedRows.load(run.folder / GENERATED), spec.rows_per_batch, spec.optim.seed, run.device)
    task = CanvasTask(network, store, spec, run.decode)
    if spec.warm_start:
        task.warm_start(load_canvas_tensors(Path(spec.warm_start)))
    result = Loop(task, spec.optim, run.folder / "canvas", journal).run()
    export_canvas(run.folder / CANVAS, run.recipe, result, facts, run.base)
    journal.say(f"wrote {CANVAS}, {(run.folder / CANVAS).stat().st_size / 1e6:.2f} MB")


def evaluate(run: Run) -> None:
    """Measures what was exported, so rounding is in the figures."""
    journal, facts, spec = run.journal("evaluate"), Facts.load(run.data), run.recipe.evaluate
    results: dict[str, object] = {"recipe": run.recipe.name, "recipe_sha256": run.recipe.sha256}
    with torch.no_grad():
        held = RowStore(PackedRows.load(run.data / HELD), 16, 0, run.device)
        batches = max(1, min(8, held.num_rows // 16))
        for name, with_skill in (("parent", False), ("skilled", True)):
            network = run.network(with_skill)
            loss = measures.held_out_loss(network, held, batches, run.recipe.skill.head_chunk)
            results[f"{name}_held_out_loss"] = loss
            journal.say(f"{name}: held-out answer loss {loss:.3f}")
    prompts = measures.HeldOut(PromptSet.load(run.data / EVAL_PROMPTS), facts.domains, facts.stop_ids)
    _show_answers(run, network, prompts, journal)
    if (run.folder / CANVAS).exists():
        tensors = {k: v.to(run.device) for k, v in load_canvas_tensors(run.folder / CANVAS).items()}
        table = measures.measure_drafts(network, CanvasWeights(tensors, tensors[MASKS]), prompts, spec)
        for line in measures.table_lines(table):
            journal.say(line)
        results["drafts"] = table
    (run.folder / "evaluation.json").write_text(json.dumps(results, indent=1))


def _show_answers(run: Run, network: Network, held_out: measures.HeldOut, journal: Journal) -> None:
    count = held_out.prompts.num_prompts
    picked = [held_out.prompts.prompt(i).tolist() for i in range(0, count, max(1, count // 24))]
    for prompt, answer in zip(picked, measures.answers(network, picked, 96, held_out.stop_ids), strict=True):
        journal.say(f"... {run.decode(prompt[-60:])!r}\n{'':>12}-> {run.decode(answer)!r}")


def _decoder(base: Path | None):  # type: ignore[no-untyped-def]
    if base is None:
        return lambda ids: " ".join(map(str, ids))
    from quicksilver.text.tokenizer import Tokenizer

    tokenizer = Tokenizer.load(base)
    return lambda ids: "".join(map(tokenizer.token_text, ids))


STAGES = {"prepare": prepare, "skill": skill, "generate": generate, "canvas": canvas, "evaluate": evaluate}


def run_stage(run: Run, stage: str) -> None:
    if stage not in STAGES:
        raise InvalidRequest(f"no such stage: {stage}; known: {', '.join(STAGES)}")
    STAGES[stage](run)


def tensors_of(result: dict[str, Tensor]) -> dict[str, Tensor]:
    return {name: tensor.detach().float().cpu() for name, tensor in result.items()}
