"""The network in compiled loops for CPUs: int8 weights, int8 activations in groups, all layers in one call.

Imports numba, so nothing outside imports it before `support.refusal()` says that it can run. Every row is summed in an
order that its neighbours cannot change: a row's bits depend on what it sees and on nothing else.
"""
