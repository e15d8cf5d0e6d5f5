"""quicksilver: an open diffusion-LLM engine and server. No work at import."""

__version__ = "0.1.0"
