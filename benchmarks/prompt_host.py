"""Time that a server spends on a long prompt before and after the model: HTTP, template, token ids, first chunk.

    python -m benchmarks.prompt_host [--model coder-1.5b] [--words 4000 16000] [--out benchmarks/results]

The engine is scripted and answers at once, so what is measured is the host's share of the time to the first token. For
comparison the same text is encoded as one piece by one thread. Medians; every prompt has other words.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import random
import statistics
import time
from collections.abc import Iterable
from contextlib import AsyncExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any

import uvloop

from benchmarks.http_streams import post, wait_for
from quicksilver.core import Request
from quicksilver.evals.report import machine_facts
from quicksilver.hub.resolve import resolve
from quicksilver.server.app import build_app
from quicksilver.server.config import ServerConfig
from quicksilver.server.encoding.pool import EncoderConfig, EncoderPool
from quicksilver.server.run import make_listener
from quicksilver.server.services import Services
from quicksilver.text.chat import ChatTemplate
from quicksilver.text.tokenizer import Tokenizer
from tests.support.fake_engine import INFO, FakeEngine, Step, spoken

_TEXT = "Each request waits until the scheduler admits it and then its prompt is read in large chunks of rows"


def text_of(num_words: int, seed: int) -> str:
    """Words with a full stop after every tenth one."""
    words, rng = _TEXT.split(), random.Random(seed)
    return " ".join(rng.choice(words) + "." * (i % 10 == 9) for i in range(num_words))


async def first_chunk_ms(port: int, text: str) -> float:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    body = {"stream": True, "messages": [{"role": "user", "content": text}]}
    started = time.perf_counter()
    writer.write(post(body))
    try:
        await reader.readuntil(b'"content":"Yes')
    except asyncio.IncompleteReadError as error:
        raise RuntimeError(f"no answer: {error.partial.decode()}") from None
    finally:
        writer.close()
    return 1e3 * (time.perf_counter() - started)


def one_piece_ms(tokenizer: Tokenizer, text: str) -> float:
    started = time.perf_counter()
    tokenizer._plain.encode_batch_fast([text], add_special_tokens=False)
    return 1e3 * (time.perf_counter() - started)


async def measure(options: argparse.Namespace) -> dict[str, Any]:
    tokenizer = Tokenizer.load(resolve(options.model).weights)
    template = ChatTemplate.for_tokenizer(tokenizer, "Be brief.")
    prompt_lens: list[int] = []

    def script(request: Request) -> Iterable[Step]:
        prompt_lens.append(len(request.prompt_ids))
        return spoken(request, tokenizer.encode("Yes."), 1)

    async with AsyncExitStack() as stack:
        encoders = await stack.enter_async_context(EncoderPool(tokenizer, template, EncoderConfig()))
        config = ServerConfig(port=options.port)
        engine = FakeEngine(script, info=replace(INFO, vocab_size=tokenizer.vocab_size, context_len=32_768))
        services = Services(engine, tokenizer, template, config=config, encoders=encoders)
        server = asyncio.create_task(make_listener(build_app(services), "127.0.0.1", options.port, config).serve())
        await wait_for(options.port)
        rows = []
        for num_words in options.words:
            texts = [text_of(num_words, seed) for seed in range(options.repeats + 1)]
            http = [await first_chunk_ms(options.port, text) for text in texts][1:]
            alone = [one_piece_ms(tokenizer, text) for text in texts][1:]
            row = {"prompt_tokens": prompt_lens[-1], "http_ms": statistics.median(http)}
            row |= {"one_piece_ms": statistics.median(alone)}
            rows.append({name: round(value, 1) for name, value in row.items()})
        server.cancel()
    return {"model": options.model, "encoder_threads": EncoderConfig().num_threads, "prompts": rows}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="coder-1.5b")
    parser.add_argument("--words", type=int, nargs="+", default=[4_000, 16_000])
    parser.add_argument("--repeats", type=int, default=9)
    parser.add_argument("--port", type=int, default=18482)
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    facts = {"benchmark": "prompt_host", **machine_facts(), "load_before": round(os.getloadavg()[0], 1)}
    report = {**facts, **uvloop.run(measure(options))}
    print(json.dumps(report, indent=2))
    if options.out is not None:
        options.out.mkdir(parents=True, exist_ok=True)
        name = f"prompt_host-{time.strftime('%Y%m%d-%H%M%S', time.gmtime())}.json"
        (options.out / name).write_text(json.dumps(report, indent=2) + "\n")


if __name__ == "__main__":
    main()
