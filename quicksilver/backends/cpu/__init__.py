"""The compiled CPU backend: int8 weights and activations, all layers of a forward in one call compiled by numba.

Other packages import its modules only if `support.unsupported_reason()` is None, because they import numba. Every sum
over a row has a fixed order, so the backend is batch-invariant: a row's bits depend only on what the row attends to.
"""
