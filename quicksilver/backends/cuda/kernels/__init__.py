"""CUDA kernels: paged attention, small-batch linears, norms, the fused head. Imports nothing itself.

Only the CUDA backend imports these modules, so everything else runs on a machine without Triton. The tests compare each
kernel with a reference in plain torch.
"""
