"""Triton kernels for CUDA: attention over rows, skinny projections, norms, the fused head. Imports nothing itself.

Nothing outside a CUDA path imports these modules, so a machine without Triton runs everything else. Each kernel has an
oracle in plain torch that the tests compare it with.
"""
