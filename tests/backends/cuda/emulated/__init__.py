"""Kernels in CUDA, run thread by thread on a processor."""
