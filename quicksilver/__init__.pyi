from quicksilver.core import CommitRule as CommitRule
from quicksilver.core import DecodeParams as DecodeParams
from quicksilver.core import DecoderName as DecoderName
from quicksilver.core import DecoderParams as DecoderParams
from quicksilver.core import FinishReason as FinishReason
from quicksilver.engine.config import EngineConfig as EngineConfig
from quicksilver.engine.load import LoadConfig as LoadConfig
from quicksilver.errors import QuicksilverError as QuicksilverError
from quicksilver.llm import LLM as LLM
from quicksilver.llm import Answer as Answer
from quicksilver.llm import AsyncLLM as AsyncLLM
from quicksilver.llm import Piece as Piece
from quicksilver.text.conversation import Message as Message

__version__: str
