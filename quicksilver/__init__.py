"""quicksilver: an open diffusion-LLM engine and server. Public names only; no work at import."""

__version__ = "0.1.0"
