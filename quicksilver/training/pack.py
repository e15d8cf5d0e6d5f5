"""Documents into rows of one length: packed tokens, where documents begin, and which tokens count in the loss.

numpy only. Document order is the caller's; packing is deterministic. A row holds whole documents (a longer one is cut
by the caller), the rest is padding that belongs to a document of its own and never counts.
"""

from __future__ import annotations

import lzma
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

import numpy as np
import numpy.typing as npt
from safetensors.numpy import load, save

from quicksilver.errors import InvalidRequest

# Rows kept open at a time: more fill better, fewer keep neighbours of the order together.
OPEN_ROWS = 64


@dataclass(frozen=True, slots=True)
class Document:
    """One training document: ids, and for each whether predicting it counts."""

    token_ids: npt.NDArray[np.integer]
    is_answer: npt.NDArray[np.bool_]
    # Plain text, the code around a gap, or what an edit copies: it counts, weighed apart from answers.
    is_text: npt.NDArray[np.bool_]

    @property
    def prompt_len(self) -> int:
        """Ids before the last answer."""
        is_asked = ~self.is_answer
        if not is_asked[1:].any():
            is_asked |= self.is_text
        return int(np.flatnonzero(is_asked)[-1]) + 1 if is_asked.any() else 0

    def prompt(self) -> list[int]:
        ids: list[int] = self.token_ids[: self.prompt_len].tolist()
        return ids


@dataclass(frozen=True, slots=True)
class PackedRows:
    """(num_rows, row_len) arrays. `is_start` marks the first token of every document and of the padding."""

    token_ids: npt.NDArray[np.unsignedinteger]
    is_start: npt.NDArray[np.bool_]
    is_answer: npt.NDArray[np.bool_]
    is_text: npt.NDArray[np.bool_]

    @property
    def num_rows(self) -> int:
        return int(self.token_ids.shape[0])

    @property
    def row_len(self) -> int:
        return int(self.token_ids.shape[1])

    def save(self, path: Path) -> None:
        """One xz file of a safetensors body: bits for flags, uint16 ids where the vocabulary allows."""
        flags = {
            name: np.packbits(getattr(self, name), axis=1, bitorder="little")
            for name in ("is_start", "is_answer", "is_text")
        }
        body = save({"token_ids": np.ascontiguousarray(self.token_ids), **flags})
        # A stage whose file exists is not run again, so a killed run must not leave a part of it.
        young = path.with_name(f"{path.name}.part")
        young.write_bytes(lzma.compress(body, preset=1) if path.suffix == ".xz" else body)
        young.replace(path)

    @classmethod
    def load(cls, path: Path) -> PackedRows:
        raw = path.read_bytes()
        arrays = load(lzma.decompress(raw) if path.suffix == ".xz" else raw)
        row_len = arrays["token_ids"].shape[1]
        flags = [
            np.unpackbits(arrays[name], axis=1, count=row_len, bitorder="little").astype(np.bool_)
            for name in ("is_start", "is_answer", "is_text")
        ]
        return cls(arrays["token_ids"], *flags)


def pack(documents: Iterable[Document], row_len: int, pad_id: int, vocab_size: int) -> PackedRows:
    """Best fit over a window of open rows; full or oldest rows are closed first. Raises InvalidRequest without any."""
    open_rows: list[list[Document]] = []
    room: list[int] = []
    done: list[list[Document]] = []
    for document in documents:
        length = len(document.token_ids)
        if not 0 < length <= row_len:
            raise InvalidRequest(f"a document of {length} tokens does not fit a row of {row_len}")
        fits = [(space, i) for i, space in enumerate(room) if space >= length]
        if fits:
            _, i = min(fits)
        else:
            i = len(open_rows)
            open_rows.append([])
            room.append(row_len)
        open_rows[i].append(document)
        room[i] -= length
        if room[i] == 0 or len(open_rows) > OPEN_ROWS:
            i = room.index(min(room))
            done.append(open_rows.pop(i))
            room.pop(i)
    if not done and not open_rows:
        raise InvalidRequest("there are no documents to train on; check the sources and data.row_len")
    return lay_out(done + open_rows, row_len, pad_id, vocab_size)


def lay_out(rows: list[list[Document]], row_len: int, pad_id: int, vocab_size: int) -> PackedRows:
    """One packed row per list of documents, which must fit it."""
    shape = (len(rows), row_len)
    token_ids = np.full(shape, pad_id, dtype=np.uint16 if vocab_size <= 1 << 16 else np.uint32)
    is_start, is_answer, is_text = (np.zeros(shape, dtype=np.bool_) for _ in range(3))
    for r, documents in enumerate(rows):
        at = 0
        for document in documents:
            end = at + len(document.token_ids)
            token_ids[r, at:end] = document.token_ids
            is_start[r, at] = True
            is_answer[r, at:end] = document.is_answer
            is_text[r, at:end] = document.is_text
            at = end
        if at < row_len:
            is_start[r, at] = True
    return PackedRows(token_ids, is_start, is_answer, is_text)


def documents_of(rows: PackedRows) -> Iterator[Document]:
    """The documents of packed rows, in order; padding has no answers and is left out."""
    for token_ids, is_start, is_answer, is_text in zip(
        rows.token_ids, rows.is_start, rows.is_answer, rows.is_text, strict=True
    ):
        bounds = [*np.flatnonzero(is_start).tolist(), rows.row_len]
        for begin, end in pairwise(bounds):
            if is_answer[begin:end].any():
                yield Document(token_ids[begin:end], is_answer[begin:end], is_text[begin:end])


def side_by_side(rows: PackedRows, row_len: int) -> PackedRows:
    """Short rows laid next to each other into rows of `row_len`, a multiple of theirs; a last odd one is left out."""
    count, odd = divmod(row_len, rows.row_len)
    if odd:
        raise InvalidRequest(f"rows of {rows.row_len} do not fill rows of {row_len}")
    num_rows = rows.num_rows // count
    names = ("token_ids", "is_start", "is_answer", "is_text")
    return PackedRows(*(getattr(rows, name)[: num_rows * count].reshape(num_rows, row_len) for name in names))


def join_rows(parts: Sequence[PackedRows]) -> PackedRows:
    """Rows of several packs of one length, in order."""
    names = ("token_ids", "is_start", "is_answer", "is_text")
    return PackedRows(*(np.concatenate([getattr(part, name) for part in parts]) for name in names))
