"""The Python API: LLM and its asynchronous version AsyncLLM, with an engine in the calling process."""

from quicksilver.llm.answers import Answer, Piece
from quicksilver.llm.async_llm import AsyncLLM
from quicksilver.llm.llm import LLM

__all__ = ["LLM", "Answer", "AsyncLLM", "Piece"]
