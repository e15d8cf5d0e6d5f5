"""Autoregressive decoding of one GGUF file by llama.cpp's own server, for the same run as ours.

    .build/llama-cpp/bin/python benchmarks/llama_cpp.py MODEL.gguf TOKENS THREADS PROMPTS.json [STREAMS]

The server is that of PyPI's xllamacpp, in this process. STREAMS prompts are in progress at a time, each in a slot of
the server; a slot keeps the part of its last prompt that the next one begins with. The last line of standard output is
a JSON list with the tokens and times of each answer. Nothing but the standard library and xllamacpp is imported.
"""

from __future__ import annotations

import json
import sys
import time
import urllib.request
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

CONTEXT_LEN = 1024


def start(model: str, threads: int, streams: int) -> object:
    import xllamacpp

    params = xllamacpp.CommonParams()
    params.model.path = model
    params.n_ctx, params.n_parallel = CONTEXT_LEN * streams, streams
    params.cpuparams.n_threads = params.cpuparams_batch.n_threads = threads
    return xllamacpp.Server(params)


def answer(url: str, prompt: str, num_tokens: int, began: float) -> dict[str, float]:
    """One streamed completion, greedy."""
    body = json.dumps({"prompt": prompt, "n_predict": num_tokens, "temperature": 0, "stream": True}).encode()
    request = urllib.request.Request(f"{url}/completion", body, {"Content-Type": "application/json"})
    start, first, tokens = time.perf_counter(), 0.0, 0
    with urllib.request.urlopen(request, timeout=600) as reply:
        for line in reply:
            if line.startswith(b"data: "):
                chunk = json.loads(line[6:])
                first = first or time.perf_counter()
                tokens = chunk.get("tokens_predicted", tokens) if chunk.get("stop") else tokens
    end = time.perf_counter()
    return {"tokens": tokens, "seconds": end - start, "first_token_s": first - start, "ended_s": end - began}


def main(model: str, num_tokens: str, threads: str, prompts: str, streams: str = "1") -> None:
    server = start(model, int(threads), int(streams))
    url = server.listening_address  # type: ignore[attr-defined]
    texts = json.loads(Path(prompts).read_text())
    answer(url, texts[0], 2, time.perf_counter())
    began = time.perf_counter()
    with ThreadPoolExecutor(int(streams)) as pool:
        answers = list(pool.map(lambda text: answer(url, text, int(num_tokens), began), texts))
    print(json.dumps(answers), flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
