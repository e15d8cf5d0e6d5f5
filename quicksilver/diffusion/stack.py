"""Canvases of several requests as arrays, so that one pass of a decoder decides for all of them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from quicksilver.diffusion.decoder import Canvas
from quicksilver.diffusion.sample import Proposal


@dataclass(frozen=True)
class Stack:
    """One row per canvas. Shorter canvases end with positions that do not exist and are not masked."""

    canvases: Sequence[Canvas]
    exists: npt.NDArray[np.bool_]  # all arrays are (canvases, longest canvas)
    token_ids: npt.NDArray[np.int64]
    is_masked: npt.NDArray[np.bool_]
    confidence: npt.NDArray[np.float32]
    proposed: Proposal

    @classmethod
    def of(cls, canvases: Sequence[Canvas], proposal: Proposal) -> Stack:
        """`proposal`: those of all canvases, one after the other."""
        lengths = np.array([len(canvas.token_ids) for canvas in canvases])
        exists = np.arange(lengths.max()) < lengths[:, None]
        is_padded = not bool(exists.all())

        def stacked(flat: npt.NDArray[Any]) -> npt.NDArray[Any]:
            if not is_padded:
                return flat.reshape(exists.shape)
            rows = np.zeros(exists.shape, flat.dtype)
            rows[exists] = flat
            return rows

        return cls(
            canvases,
            exists,
            stacked(np.concatenate([canvas.token_ids for canvas in canvases])),
            stacked(np.concatenate([canvas.is_masked for canvas in canvases])),
            stacked(np.concatenate([canvas.confidence for canvas in canvases])),
            Proposal(
                stacked(proposal.token_ids),
                stacked(proposal.confidence),
                stacked(proposal.entropy),
                stacked(proposal.is_finite),
            ),
        )

    @property
    def lengths(self) -> npt.NDArray[np.int64]:
        """(canvases, 1)"""
        return self.exists.sum(-1, keepdims=True)

    def column(self, name: str) -> npt.NDArray[np.int64]:
        """(canvases, 1): an integer field of every canvas."""
        return np.array([getattr(canvas, name) for canvas in self.canvases])[:, None]

    def fill(self, chosen: npt.NDArray[np.bool_]) -> Stack:
        """`chosen` positions are decided. Masked positions keep the proposal as their current guess."""
        is_open = self.is_masked | chosen
        return replace(
            self,
            token_ids=np.where(is_open, self.proposed.token_ids, self.token_ids),
            is_masked=self.is_masked & ~chosen,
            confidence=np.where(is_open, self.proposed.confidence, self.confidence),
        )

    def num_decided(self) -> list[int]:
        """Length of the leading run without masks, of every canvas."""
        counts: list[int] = np.logical_and.accumulate(self.exists & ~self.is_masked, -1).sum(-1).tolist()
        return counts
