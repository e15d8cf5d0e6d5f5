"""The attention of a layer: head norms, RoPE, cache write and attention of projected rows, by the kernels that the
workspace was made for."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from quicksilver.backends.cuda.kernels.attention import attend_paged
from quicksilver.backends.cuda.kernels.decode_attention import RawQkv, attend_decode
from quicksilver.backends.cuda.kernels.rope_kernel import rotate_and_write
from quicksilver.backends.cuda.kernels.weights import NetworkWeights
from quicksilver.backends.cuda.kernels.workspace import RowInputs, Workspace
from quicksilver.model.attention import PagedCache
from quicksilver.model.config import ModelConfig


@dataclass(frozen=True, slots=True)
class LayerAttention:
    config: ModelConfig
    weights: NetworkWeights
    cache: PagedCache
    angles: Tensor  # `rope_kernel.angle_table`

    def attend(self, index: int, qkv: Tensor, rows: RowInputs, workspace: Workspace, *, merges: bool = True) -> Tensor:
        """Attention of rotated rows whose KV is written -> (rows, heads * head_dim). `merges`: see `attend_paged`."""
        heads, attend = qkv.view(len(qkv), -1, self.config.head_dim), workspace.attend
        if attend.shape.is_decode:
            return attend_decode(heads, self._caches(index), rows.tables, attend)
        return attend_paged(heads, self._caches(index), rows.tables, attend.shape, attend, merges)

    def rotate_and_attend(self, index: int, qkv: Tensor, rows: RowInputs, workspace: Workspace) -> Tensor:
        """Attention of projected rows, and the write of their KV. May change `qkv`."""
        if workspace.fuses_rope:
            return self._attend_raw(index, qkv[None], None, rows, workspace)
        self._rotate_and_write(index, qkv, rows)
        return self.attend(index, qkv, rows, workspace)

    def attend_sums(self, index: int, sums: Tensor, rows: RowInputs, workspace: Workspace) -> Tensor:
        """As `rotate_and_attend`, of rows whose qkv without bias are sums of splits, (splits, rows, outputs)."""
        bias = self.weights.layers[index].qkv.bias
        if workspace.fuses_rope:
            return self._attend_raw(index, sums, bias, rows, workspace)
        self._rotate_and_write(index, workspace.qkv, rows, (sums, bias))
        return self.attend(index, workspace.qkv, rows, workspace)

    def _attend_raw(
        self, index: int, sums: Tensor, bias: Tensor | None, rows: RowInputs, workspace: Workspace
    ) -> Tensor:
        raw = RawQkv(sums, bias, self.angles, rows.where.slots, self.weights.layers[index].head_norms)
        heads = workspace.qkv.view(len(workspace.qkv), -1, self.config.head_dim)
        return attend_decode(heads, self._caches(index), rows.tables, workspace.attend, raw)

    def _rotate_and_write(
        self, index: int, qkv: Tensor, rows: RowInputs, sums: tuple[Tensor, Tensor | None] | None = None
    ) -> None:
        heads, norms = qkv.view(len(qkv), -1, self.config.head_dim), self.weights.layers[index].head_norms
        rotate_and_write(heads, self._caches(index), rows.where, self.angles, norms, self.config.rotary_dim, sums)

    def _caches(self, index: int) -> tuple[Tensor, Tensor]:
        return self.cache.k[index], self.cache.v[index]
