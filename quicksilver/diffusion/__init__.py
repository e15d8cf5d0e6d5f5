"""Diffusion decoding: sampling, commit rules, the decoders, and the uncached reference loop."""
