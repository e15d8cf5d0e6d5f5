"""The network: configs and families, the transformer, attention over rows, adapters, weight files, number formats.

This package works on tensors and a paged KV cache; requests, sampling and text are elsewhere. Import from the modules.
"""
