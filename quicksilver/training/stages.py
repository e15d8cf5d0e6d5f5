"""The stages of a recipe. Each is a function of a Run that reads earlier results from its folder and writes its own.

A stage whose result is there is skipped, so an interrupted run continues where it stopped. Data preparation is imported
only when it runs: the other stages need neither tokenizer code nor text.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import torch
from torch import Tensor

from quicksilver.errors import InvalidRequest
from quicksilver.training import evaluate as measures
from quicksilver.training.answers import AnswerDecoder
from quicksilver.training.batches import RowStore
from quicksilver.training.canvas import MASKS, CanvasTask, Decode
from quicksilver.training.checkpoint import saved_facts
from quicksilver.training.comparison import examples
from quicksilver.training.decode import CanvasWeights
from quicksilver.training.export import (
    canvas_tensors,
    export_adapter,
    finished_tensors,
    load_base,
    provenance,
    skill_tensors,
)
from quicksilver.training.generate import Generator, PromptSet, generated_rows
from quicksilver.training.journal import Journal
from quicksilver.training.kto import KtoTask
from quicksilver.training.loop import CHECKPOINT, Loop
from quicksilver.training.network import Network, as_written
from quicksilver.training.pack import Document, PackedRows, documents_of, join_rows, pack, side_by_side
from quicksilver.training.pairs import PairTask, wrong_proposals
from quicksilver.training.prepared_data import (
    EDIT_PROMPTS,
    EVAL_PROMPTS,
    FACTS,
    FINALS,
    HELD,
    PROMPTS,
    TRAIN,
    Facts,
    read_finals,
)
from quicksilver.training.proposals import (
    by_kind,
    proposed,
    read_edit_prompts,
    read_proposals,
    selectivity_text,
    thinned,
    write_proposals,
)
from quicksilver.training.recipe import Recipe
from quicksilver.training.skill import SkillTask
from quicksilver.training.toy_task import write_verses

GENERATED = "generated.safetensors"
PROPOSALS = "proposals.json.xz"
DISTILLED = "distilled.safetensors.xz"
# Fewest answer tokens of a written document. A shorter answer leaves no room for a canvas.
MIN_WRITTEN = 8
SKILL, CANVAS = "skill.safetensors", "canvas.safetensors"


@dataclass(frozen=True, slots=True)
class Run:
    """State of one running recipe, with its folder."""

    recipe: Recipe
    folder: Path
    # Folder of the prepared files.
    data: Path
    # Weights of the frozen base; None if the recipe uses a random one.
    base: Path | None
    # A skill adapter made by another run; this run's own is used where there is none.
    skill: Path | None
    device: torch.device
    commit: str = ""
    # The distil stage's teacher, where it is not the recipe's.
    teacher: Path | None = None

    def journal(self, stage: str) -> Journal:
        return Journal(self.folder / "log", stage)

    def network(self, with_skill: bool) -> Network:
        """The base on the device, with the recipe's (or this run's) skill adapter merged if asked for."""
        dtype = torch.bfloat16 if self.recipe.base.dtype == "bfloat16" else torch.float32
        model = load_base(self.base, self._skill() if with_skill else None)
        return Network(model.to(self.device, dtype).eval())

    def parent_network(self) -> Network:
        """The model that the skill stage starts from: the base, with the adapter of a warm start merged."""
        start = self.recipe.skill.warm_start
        dtype = torch.bfloat16 if self.recipe.base.dtype == "bfloat16" else torch.float32
        return Network(load_base(self.base, Path(start) if start else None).to(self.device, dtype).eval())

    def teacher_network(self) -> Network:
        return Network(load_base(self.teacher_path(), None).to(self.device, torch.bfloat16).eval())

    def teacher_path(self) -> Path:
        if self.teacher is None and not self.recipe.distil.teacher:
            raise InvalidRequest("recipe.distil.teacher: missing; name the weights that answer")
        return self.teacher or Path(self.recipe.distil.teacher)

    def _skill(self) -> Path | None:
        if self.skill is not None and not self.skill.exists():
            raise InvalidRequest(f"skill adapter {self.skill} does not exist; run its recipe first")
        own = self.folder / SKILL
        return self.skill or (own if own.exists() else None)

    def decode(self, token_ids: list[int]) -> str:
        return decoder_of(self.base)(token_ids)


def prepare(run: Run) -> None:
    # The facts are written last: without them an earlier run of this stage was not completed.
    if (run.data / FACTS).exists():
        return
    if run.base is None:
        write_verses(run.data, run.recipe.data.row_len)
        return
    data = run.recipe.data
    if data.files:
        from quicksilver.training.prepare_own import prepare_own_data

        if data.rows:
            raise InvalidRequest("recipe.data: give files or rows, not both")
        prepare_own_data(data, run.base, run.data, run.journal("prepare"))
        return
    from quicksilver.training.prepare import prepare_data

    if not data.rows:
        raise InvalidRequest("recipe.data: name your files in [data.files], or sources in [data.rows]")
    prepare_data(data, run.base, run.data, run.journal("prepare"))


def distil(run: Run) -> None:
    """Writes the answers of a larger model as packed rows, in the token ids of the base."""
    target = run.folder / DISTILLED
    if target.exists() or run.base is None:
        return
    from quicksilver.training.distil import Teaching, distil_chat

    teaching = Teaching(run.recipe, run.data, run.base, run.teacher_path())
    distil_chat(teaching, run.teacher_network(), run.journal("distil")).save(target)


def skill(run: Run) -> None:
    spec, journal, facts = run.recipe.skill, run.journal("skill"), Facts.load(run.data)
    network = run.network(with_skill=False)
    rows = PackedRows.load(run.data / TRAIN)
    if (run.folder / DISTILLED).exists():
        rows = join_rows([rows, PackedRows.load(run.folder / DISTILLED)])
    if spec.rehearsals:
        rows = join_rows([rows, *[rehearsal(run, journal)] * spec.rehearsals])
    journal.print_line(f"{rows.num_rows} rows of {rows.row_len}, {facts.answer_tokens / 1e6:.1f} M answer tokens")
    store = RowStore(rows, spec.rows_per_batch, spec.optim.seed, run.device)
    task = SkillTask(network, store, spec, sorted(set(facts.reserved.values())), run.decode)
    if spec.warm_start:
        task.warm_start(skill_tensors(Path(spec.warm_start), task.reserved_ids))
    Loop(task, spec.optim, run.folder / "skill", journal).run()


def rehearsal(run: Run, journal: Journal) -> PackedRows:
    """What the generate stage left, as rows of the skill's length."""
    if run.base is None:
        raise InvalidRequest("recipe.skill.rehearsals: needs base weights with a tokenizer")
    from quicksilver.text.tokenizer import Tokenizer
    from quicksilver.training.formats import Formatter
    from quicksilver.training.rehearse import rehearsal_rows

    data = run.recipe.data
    tokenizer = Tokenizer.load(run.base)
    formatter = Formatter(tokenizer.with_reserved() if data.reserves_tokens else tokenizer, data.row_len)
    finals = read_finals(run.data / FINALS)
    rows = rehearsal_rows(PackedRows.load(run.folder / GENERATED), finals, formatter, data.seed)
    journal.print_line(f"{rows.num_rows} rows of rehearsal, {rows.is_answer.sum() / 1e6:.2f} M answer tokens")
    return rows


def generate(run: Run) -> None:
    target = run.folder / GENERATED
    if target.exists():
        return
    spec, journal, facts = run.recipe.generate, run.journal("generate"), Facts.load(run.data)
    network = run.network(with_skill=True)
    generator = Generator(network, PromptSet.load(run.data / PROMPTS), spec, facts.end_id)
    made = generated_rows(generator, journal)
    made.save(target)
    journal.print_line("sample: " + run.decode(made.token_ids[-1][:200].tolist()))


def propose(run: Run) -> None:
    """Greedy next edits of the skilled model, compared with the expected ones."""
    target = run.folder / PROPOSALS
    if target.exists():
        return
    if run.base is None:
        raise InvalidRequest("the propose stage needs base weights with a tokenizer")
    spec, journal, facts = run.recipe.propose, run.journal("propose"), Facts.load(run.data)
    from quicksilver.text.tokenizer import Tokenizer

    decoder = AnswerDecoder(run.network(with_skill=True), spec.batch, spec.num_slots, facts.stop_ids)
    edits, tokenizer = read_edit_prompts(run.data / EDIT_PROMPTS), Tokenizer.load(run.base).with_reserved()
    found = proposed(decoder, edits, spec, tokenizer)
    write_proposals(target, found)
    for kind, shares in by_kind(found).items():
        journal.print_line(
            f"{kind}: {shares['count']:.0f}, shown {shares['shown']:.3f}, accepted {shares['accepted']:.3f}"
        )
    journal.print_line(f"selectivity: {selectivity_text(found)}")


def kto(run: Run) -> None:
    """Preference training from this run's skill on its proposals."""
    spec, journal, facts = run.recipe.kto, run.journal("kto"), Facts.load(run.data)
    network, found = run.network(with_skill=False), read_proposals(run.folder / PROPOSALS)
    found = [proposal for proposal in found if proposal.answer and len(proposal.document().token_ids) <= spec.row_len]
    found = thinned(found, spec.accepted_per_rejected, spec.optim.seed)
    task = KtoTask(network, found, spec, sorted(set(facts.reserved.values())), run.decode)
    task.begin(_start_of(run, spec.warm_start, task.reserved_ids))
    accepted = sum(proposal.is_accepted for proposal in found)
    weights = f"{task.weights.accepted:.2f} and {task.weights.rejected:.2f}"
    journal.print_line(f"{accepted} accepted and {len(found) - accepted} rejected, weights {weights}")
    journal.print_line(f"selectivity before: {selectivity_text(task.scored())}")
    Loop(task, spec.optim, run.folder / "kto", journal).run()
    journal.print_line(f"selectivity after: {selectivity_text(task.scored())}")


def pairs(run: Run) -> None:
    """Preference training from a skill on pairs of the expected answer and this run's wrong proposals."""
    spec, journal, facts = run.recipe.pairs, run.journal("pairs"), Facts.load(run.data)
    wrong = wrong_proposals(read_proposals(run.folder / PROPOSALS), spec.row_len, spec.max_pairs, spec.optim.seed)
    network = run.network(with_skill=False)
    task = PairTask(network, wrong, spec, sorted(set(facts.reserved.values())), run.decode)
    task.begin(_start_of(run, spec.warm_start, task.reserved_ids))
    journal.print_line(f"{len(wrong)} pairs in {task.num_batches} batches")
    Loop(task, spec.optim, run.folder / "pairs", journal).run()


def _start_of(run: Run, warm_start: str, reserved_ids: Tensor) -> Mapping[str, Tensor]:
    """The adapter that preference training starts from: a file, or this run's skill checkpoint."""
    if warm_start:
        return skill_tensors(Path(warm_start), reserved_ids)
    return finished_tensors(run.folder / "skill" / CHECKPOINT)


def canvas(run: Run) -> None:
    spec, journal = run.recipe.canvas, run.journal("canvas")
    network = run.network(with_skill=True)
    rows = own_answers(run)
    if spec.written_share:
        rows = join_rows([rows, written_rows(run, int(rows.num_rows * spec.written_share), rows.row_len)])
    journal.print_line(f"{rows.num_rows} rows of {rows.row_len}, {rows.is_answer.sum() / 1e6:.1f} M answer tokens")
    store = RowStore(rows, spec.rows_per_batch, spec.optim.seed, run.device)
    task = CanvasTask(network, store, spec, run.decode)
    if spec.warm_start:
        task.warm_start(canvas_tensors(Path(spec.warm_start)))
    Loop(task, spec.optim, run.folder / "canvas", journal).run()


def own_answers(run: Run) -> PackedRows:
    """Answers of the generate stage and, where there are some, of the propose stage, in rows of one length."""
    rows = PackedRows.load(run.folder / GENERATED)
    rows = side_by_side(rows, run.recipe.canvas.row_len or rows.row_len)
    if not (run.folder / PROPOSALS).exists():
        return rows
    facts = Facts.load(run.data)
    documents = [proposal.document() for proposal in read_proposals(run.folder / PROPOSALS)]
    fitting = [document for document in documents if len(document.token_ids) <= rows.row_len]
    return join_rows([rows, pack(fitting, rows.row_len, facts.end_id, facts.vocab_size)])


def written_rows(run: Run, num_rows: int, row_len: int) -> PackedRows:
    """Documents with prompts too long for generation, as they were written, packed again."""
    facts = Facts.load(run.data)
    room = num_rows * row_len
    picked: list[Document] = []
    for document in documents_of(PackedRows.load(run.data / TRAIN)):
        num_answers = len(document.token_ids) - document.prompt_len
        is_long = document.prompt_len > run.recipe.data.max_prompt_len and len(document.token_ids) <= row_len
        if is_long and num_answers >= MIN_WRITTEN:
            picked.append(document)
            room -= len(document.token_ids)
        if room <= 0:
            break
    return pack(picked, row_len, facts.end_id, facts.vocab_size)


def export(run: Run) -> None:
    """Round every checkpoint of this run into its adapter file."""
    journal, facts = run.journal("export"), Facts.load(run.data)
    reserved = torch.tensor(sorted(set(facts.reserved.values())))
    last = next((stage for stage in ("pairs", "kto") if (run.folder / stage / CHECKPOINT).exists()), "skill")
    for stage, target in ((last, run.folder / SKILL), ("canvas", run.folder / CANVAS)):
        checkpoint = run.folder / stage / CHECKPOINT
        if not checkpoint.exists():
            continue
        metadata = provenance(run.recipe, facts, run.base, saved_facts(checkpoint)) | {"commit": run.commit}
        export_adapter(checkpoint, target, run.recipe.export.bits, metadata, reserved)
        journal.print_line(f"wrote {target.name}, {target.stat().st_size / 1e6:.2f} MB")


def evaluate(run: Run) -> None:
    """Measures what was exported, so rounding is in the figures."""
    journal, facts, spec = run.journal("evaluate"), Facts.load(run.data), run.recipe.evaluate
    results: dict[str, object] = {"recipe": run.recipe.name, "recipe_sha256": run.recipe.sha256}
    network = Network(run.network(with_skill=True).model, as_written)
    if (run.data / HELD).exists():
        results |= _held_out_losses(run, network, journal)
    prompts = measures.HeldOut(PromptSet.load(run.data / EVAL_PROMPTS), facts.domains, facts.stop_ids)
    _show_answers(run, network, prompts, journal)
    if (run.folder / CANVAS).exists():
        tensors = {k: v.to(run.device) for k, v in canvas_tensors(run.folder / CANVAS).items()}
        weights = CanvasWeights(tensors, tensors[MASKS])
        table = measures.measure_drafts(network, weights, prompts, spec)
        for line in measures.table_lines(table):
            journal.print_line(line)
        results["drafts"] = table
        results["examples"] = examples(network, weights, prompts, spec, run.decode)
    (run.folder / "evaluation.json").write_text(json.dumps(results, indent=1))


def _held_out_losses(run: Run, network: Network, journal: Journal) -> dict[str, float]:
    rows = PackedRows.load(run.data / HELD)
    held = RowStore(rows, min(16, rows.num_rows), 0, run.device)
    num_batches = min(8, held.num_rows // held.rows_per_batch)
    losses = {}
    parent = Network(run.parent_network().model, as_written)
    for name, model in (("parent", parent), ("skilled", network)):
        loss = measures.held_out_loss(model, held, num_batches, run.recipe.skill.head_chunk)
        losses[f"{name}_held_out_loss"] = loss
        journal.print_line(f"{name}: held-out answer loss {loss:.3f}")
    return losses


def _show_answers(run: Run, network: Network, held_out: measures.HeldOut, journal: Journal) -> None:
    count = held_out.prompts.num_prompts
    picked = [held_out.prompts.prompt(i).tolist() for i in range(0, count, max(1, count // 24))]
    for prompt, answer in zip(picked, measures.answers(network, picked, 96, held_out.stop_ids), strict=True):
        journal.print_line(f"... {run.decode(prompt[-60:])!r}\n{'':>12}-> {run.decode(answer)!r}")


@cache
def decoder_of(base: Path | None) -> Decode:
    """Ids to readable text with special tokens spelled out; without a tokenizer, the numbers."""
    if base is None:
        return lambda ids: " ".join(map(str, ids))
    from quicksilver.text.tokenizer import Tokenizer

    tokenizer = Tokenizer.load(base)
    return lambda ids: "".join(map(tokenizer.token_text, ids))


STAGES = {
    "prepare": prepare,
    "distil": distil,
    "skill": skill,
    "generate": generate,
    "propose": propose,
    "kto": kto,
    "pairs": pairs,
    "canvas": canvas,
    "export": export,
    "evaluate": evaluate,
}


def run_stage(run: Run, stage: str) -> None:
    if stage not in STAGES:
        raise InvalidRequest(f"no such stage: {stage}; known: {', '.join(STAGES)}")
    STAGES[stage](run)
