"""The program of an encoder process: reads jobs from stdin and writes results to stdout.

Its jobs are prompts to encode, updates to merge into a file, and rewritten parts of a file to check.

Started by `pool` as `python -m quicksilver.server.encoding.worker MEMORY_BYTES LIMIT_S NUM_THREADS`. The first frame
is a Setup; every later one is a Job and is answered by a Reply. Limits and frames are those of a compile process. The
threads encode the pieces of a long text.
"""

from __future__ import annotations

import os
import sys
from typing import BinaryIO

import msgspec

from quicksilver.constrain.compile.frames import HEADER, limit_memory, lower_priority, serve_frames
from quicksilver.editing.apply import MergedPart, Rewrite, checked_reply, merge
from quicksilver.errors import InvalidRequest
from quicksilver.server.encoding.prompt_encoder import Encoded, EncodeJob, encode
from quicksilver.text.chat import ChatTemplate
from quicksilver.text.special_tokens import Specials
from quicksilver.text.tokenizer import Tokenizer
from quicksilver.text.vocabulary import Vocabulary

# Address space that glibc reserves for the allocations of a thread.
_ARENA_BYTES = 64 * 2**20


class Setup(msgspec.Struct, frozen=True):
    """A tokenizer and a template as data. Without a `template` source the default template is used."""

    vocabulary: Vocabulary
    roles: Specials
    template: str | None
    # The default system message.
    system: str
    # Whether conversations with tools are written by the default template.
    lacks_tools: bool = False

    @classmethod
    def of(cls, tokenizer: Tokenizer, template: ChatTemplate) -> Setup:
        return cls(tokenizer.vocabulary, tokenizer.roles, template.source, template.system, template.lacks_tools)

    def build(self) -> tuple[Tokenizer, ChatTemplate]:
        tokenizer = Tokenizer(self.vocabulary).replace_roles(self.roles)
        if self.template is None:
            return tokenizer, ChatTemplate.own(tokenizer, self.system)
        return tokenizer, ChatTemplate.from_source(tokenizer, self.template, self.system, lacks_tools=self.lacks_tools)


class MergeUpdate(msgspec.Struct, frozen=True, tag=True):
    """An update snippet and the file that it changes."""

    original: str
    update: str


class CheckRewrite(msgspec.Struct, frozen=True, tag=True):
    """A part of a file and the answer of the model that rewrote it."""

    part: Rewrite
    answer: str


Job = EncodeJob | MergeUpdate | CheckRewrite


class Merged(msgspec.Struct, frozen=True, tag=True):
    parts: tuple[MergedPart, ...]


class Checked(msgspec.Struct, frozen=True, tag=True):
    """The text of the rewritten part; None if the answer must not be used."""

    text: str | None


Result = Encoded | Merged | Checked


def perform(job: Job, tokenizer: Tokenizer, template: ChatTemplate) -> Result:
    if isinstance(job, MergeUpdate):
        return Merged(tuple(merge(job.original, job.update)))
    if isinstance(job, CheckRewrite):
        return Checked(checked_reply(job.part, job.answer))
    return encode(job, tokenizer, template)


class EncodeRefusal(msgspec.Struct, frozen=True):
    message: str
    param: str | None
    code: str


class Reply(msgspec.Struct, frozen=True):
    """The result, or the reason why the text is refused, or the type of an unexpected exception."""

    result: Result | None = None
    refusal: EncodeRefusal | None = None
    failure: str = ""


job_decoder = msgspec.msgpack.Decoder(Job)


def reply_to(data: bytes, tokenizer: Tokenizer, template: ChatTemplate) -> Reply:
    try:
        return Reply(perform(job_decoder.decode(data), tokenizer, template))
    except InvalidRequest as error:
        return Reply(refusal=EncodeRefusal(error.message, error.param, error.code))
    except (MemoryError, RecursionError):
        return Reply(refusal=EncodeRefusal("The prompt needs too much memory to encode.", None, InvalidRequest.code))
    except Exception as error:  # its message may quote the prompt
        return Reply(failure=type(error).__name__)


def serve(requests: BinaryIO, replies: BinaryIO, memory_bytes: int, limit_s: float, num_threads: int = 1) -> None:
    (length,) = HEADER.unpack(requests.read(HEADER.size))
    tokenizer, template = msgspec.msgpack.decode(requests.read(length), type=Setup).build()
    tokenizer.prepare(num_threads)
    limit_memory(memory_bytes)
    serve_frames(requests, replies, limit_s, lambda data: msgspec.msgpack.encode(reply_to(data, tokenizer, template)))


if __name__ == "__main__":
    lower_priority()
    memory_bytes, num_threads = int(sys.argv[1]), int(sys.argv[3])
    # The tokenizer's library reads these when it encodes its first batch.
    os.environ["RAYON_NUM_THREADS"] = str(num_threads)
    os.environ["TOKENIZERS_PARALLELISM"] = str(num_threads > 1).lower()
    memory_bytes += num_threads * _ARENA_BYTES
    serve(sys.stdin.buffer, sys.stdout.buffer, memory_bytes, float(sys.argv[2]), num_threads)
