"""Refresh of the canvas adapter for a tuned model: low-rank pairs for canvas rows, added to the adapter of the base.

They are distilled from the tuned model on its own answers. Causal rows do not use them, so no text of `verify` changes.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import numpy as np
import torch
from torch import Tensor

from quicksilver.training.attention import CleanAttention
from quicksilver.training.batches import Batch, RowStore
from quicksilver.training.canvas import MASKS, CanvasTask
from quicksilver.training.decode import BatchDecoder
from quicksilver.training.network import Lora, Network
from quicksilver.training.pack import Document, pack
from quicksilver.training.recipe import Canvas, Optim
from quicksilver.training.service.measure import CANVAS_LEN, LIMIT, TOKENS_PER_ROUND, draft_prompts

# A refresh follows where less than this share of the tokens per round is left.
LEAST_SHARE = 0.9
RANK = 16
LEARNING_RATE = 1e-3
# By device: prompts that are answered, prompts of one batch, the most tokens of an answer, and steps of training with
# their packed rows. A CPU takes minutes.
NUM_ANSWERS = {"cpu": 32, "cuda": 256}
ANSWER_BATCH = {"cpu": 16, "cuda": 64}
ANSWER_LEN = {"cpu": 48, "cuda": 128}
NUM_STEPS = {"cpu": 40, "cuda": 200}
ROWS_PER_BATCH = {"cpu": 2, "cuda": 8}
# Clean tokens whose hidden states, keys and values are kept between steps: 190 MB of nano in float32. On a GPU they are
# computed in every step.
CACHED_TOKENS = {"cpu": 4096, "cuda": 0}
# Packed rows have a multiple of this length, and this many canvas rows each.
ROW_LEN_STEP, CANVAS_ROWS = 128, 256
NUM_REPORTS = 10
# Tokens of one forward in each stage on a CPU, about, for the time that is left.
WORK = {"answers": 4000.0, "refresh": 30_000.0}


def is_needed(before: Mapping[str, float], after: Mapping[str, float]) -> bool:
    """Whether drafts are accepted less often than before training and better ones are possible: answers that became
    shorter have fewer tokens per round also with perfect drafts."""
    if TOKENS_PER_ROUND not in before or TOKENS_PER_ROUND not in after:
        return False
    return after[TOKENS_PER_ROUND] < LEAST_SHARE * min(before[TOKENS_PER_ROUND], after[LIMIT])


class RefreshTask(CanvasTask):
    """Implements `loop.Task`. Parameters: pairs that are added to those of a frozen canvas adapter."""

    def __init__(self, network: Network, store: RowStore, spec: Canvas, canvas: Mapping[str, Tensor]) -> None:
        super().__init__(network, store, spec, str)
        self._canvas, self.masks, self.parameters = canvas, canvas[MASKS], dict(self._lora)
        self._clean: dict[bytes, tuple[Tensor, CleanAttention]] = {}
        self._is_cached = store.num_rows * store.row_len <= CACHED_TOKENS[network.device.type]

    def lora(self) -> Lora:
        return with_pairs(self._canvas, self.parameters)

    def clean_rows(self, batch: Batch) -> tuple[Tensor, CleanAttention]:
        """The network does not change during a refresh, so few rows are computed once each."""
        if not self._is_cached:
            return super().clean_rows(batch)
        hidden, kept = zip(*(self._clean_row(batch, index) for index in range(len(batch.token_ids))), strict=True)
        return torch.cat(hidden), CleanAttention.joined(batch.doc_id, kept)

    def _clean_row(self, batch: Batch, index: int) -> tuple[Tensor, CleanAttention]:
        key = batch.token_ids[index].numpy().tobytes()
        if key not in self._clean:
            row = Batch(*(getattr(batch, name)[index : index + 1] for name in Batch.__slots__))
            self._clean[key] = super().clean_rows(row)
        return self._clean[key]


def with_pairs(canvas: Mapping[str, Tensor], added: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """A canvas adapter whose products are the sums of both."""
    joined = {name: torch.cat((canvas[name], each), dim=int(name.endswith(".B"))) for name, each in added.items()}
    return {**joined, MASKS: canvas[MASKS]}


def refresh_task(network: Network, canvas: Mapping[str, Tensor], answers: Sequence[Document], seed: int) -> RefreshTask:
    device = network.device.type
    longest = max(len(document.token_ids) for document in answers)
    row_len = -(-max(longest, 2 * ROW_LEN_STEP) // ROW_LEN_STEP) * ROW_LEN_STEP
    rows = pack(answers, row_len, pad_id=0, vocab_size=network.config.vocab_size)
    optim = Optim(
        lr=LEARNING_RATE,
        warmup_steps=max(1, NUM_STEPS[device] // 20),
        max_steps=NUM_STEPS[device],
        log_every=max(1, NUM_STEPS[device] // NUM_REPORTS),
        seed=seed,
    )
    spec = Canvas(
        rank=RANK,
        canvas_lens=(min(CANVAS_LEN, len(canvas[MASKS])),),
        canvas_rows=CANVAS_ROWS,
        max_canvas_len=len(canvas[MASKS]),
        rows_per_batch=min(ROWS_PER_BATCH[device], rows.num_rows),
        optim=optim,
    )
    return RefreshTask(network, RowStore(rows, spec.rows_per_batch, seed, network.device), spec, canvas)


def tokens_per_step(task: RefreshTask, answers: Sequence[Document]) -> int:
    """Mean number of tokens of a batch, without padding."""
    total = sum(len(document.token_ids) for document in answers)
    return total * task.store.rows_per_batch // task.store.num_rows


def own_answers(
    network: Network, documents: Sequence[Document], stop_ids: Sequence[int], pause: Callable[[], None]
) -> list[Document]:
    """Greedy answers of the network to prompts of the documents. `pause` is called between batches."""
    device, answered = network.device.type, list[Document]()
    prompts = draft_prompts(documents, NUM_ANSWERS[device])
    for start in range(0, len(prompts), ANSWER_BATCH[device]):
        pause()
        part = prompts[start : start + ANSWER_BATCH[device]]
        decoded = BatchDecoder(network, part, ANSWER_LEN[device], list(stop_ids)).ar()
        for index, prompt in enumerate(part):
            ids = np.array([*prompt, *decoded.answer(index)])
            is_answer = np.arange(len(ids)) >= len(prompt)
            answered.append(Document(ids, is_answer, np.zeros_like(is_answer)))
    return answered
