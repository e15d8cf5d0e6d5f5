"""quicksilver: an open diffusion-LLM engine and server. No work at import: public names are imported on first use."""

from importlib import import_module as _import_module

__version__ = "0.1.0"

# Public name -> its module. They are typed in `__init__.pyi`.
_MODULES = {
    **dict.fromkeys(("LLM", "AsyncLLM", "Answer", "Piece"), "quicksilver.llm"),
    **dict.fromkeys(("DecodeParams", "DecoderParams", "DecoderName", "CommitRule", "FinishReason"), "quicksilver.core"),
    "EngineConfig": "quicksilver.engine.config",
    "LoadConfig": "quicksilver.engine.load",
    "Message": "quicksilver.text.conversation",
    "QuicksilverError": "quicksilver.errors",
}
__all__ = ["__version__", *_MODULES]


def __getattr__(name: str) -> object:
    if name in _MODULES:
        return getattr(_import_module(_MODULES[name]), name)
    raise AttributeError(f"module 'quicksilver' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted(__all__)
