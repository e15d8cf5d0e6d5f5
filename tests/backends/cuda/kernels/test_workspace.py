"""Workspaces of a forward: views of a shared residual stream, and chunks of the batch-invariant path."""

from __future__ import annotations

import torch

from quicksilver.backends.cuda.kernels.network import CudaNetwork, MatmulMode
from quicksilver.backends.cuda.kernels.rope_kernel import angle_table
from quicksilver.backends.cuda.kernels.weights import collect
from quicksilver.backends.cuda.kernels.workspace import attention_shape
from quicksilver.model.attention import PagedCache
from tests.support.graph_checks import TINIEST, model_of
from tests.support.kernel_checks import here


def network_of(mode: MatmulMode) -> CudaNetwork:
    model, place = model_of(TINIEST), here()
    cache = PagedCache.allocate(TINIEST, 4, 16, place.device, place.dtype)
    return CudaNetwork(TINIEST, collect(model), cache, angle_table(model.rope, 64), mode)


def test_a_batch_invariant_workspace_is_cut_into_chunks_of_256_rows() -> None:
    network = network_of(MatmulMode.BATCH_INVARIANT)
    assert [len(chunk.x) for chunk in network.workspace(128).chunks] == [128]
    workspace = network.workspace(512)
    assert [len(chunk.x) for chunk in workspace.chunks] == [256, 256]
    assert workspace.chunks[1].qkv.data_ptr() == workspace.qkv[256].data_ptr()


def test_workspaces_share_one_residual_stream() -> None:
    x = torch.zeros(1024, TINIEST.dim, device=here().device, dtype=here().dtype)
    workspace = network_of(MatmulMode.BATCH_INVARIANT).workspace(512).with_x(x)
    assert workspace.x.data_ptr() == x.data_ptr()
    assert workspace.chunks[1].x.data_ptr() == x[256].data_ptr()


def test_small_batches_split_the_keys_of_attention() -> None:
    assert [attention_shape(TINIEST, rows).splits for rows in (16, 64, 256, 512)] == [16, 16, 4, 1]
