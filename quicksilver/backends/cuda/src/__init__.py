"""Kernels in CUDA, compiled on the machine that runs them: `compile.py` compiles and launches, `device.cuh` has the
instructions, the other files are a kernel each."""
