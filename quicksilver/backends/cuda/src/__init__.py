"""CUDA sources, compiled at run time by `compile.py`: `device.cuh` has the device primitives, every other file is a
kernel."""
