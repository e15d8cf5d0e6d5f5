"""The CUDA backend: captured graphs, verify rounds that run on the device, and the kernels under them."""
