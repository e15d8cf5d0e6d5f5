"""The network: configs, the transformer, attention over rows, adapters, weight files and quantisation.

Knows tensors and a paged cache; knows no request, no sampler, no text. Import from the modules themselves.
"""
