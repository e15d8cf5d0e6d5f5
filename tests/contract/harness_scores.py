"""Log-likelihoods of multiple-choice items by this project's own runner.

`python -m tests.contract.harness_scores ITEMS` prints one JSON object per item: the token ids of the question and of
each choice, and the log-probabilities of the tokens of each choice. A foreign harness must get the same numbers over
HTTP.
"""

from __future__ import annotations

import asyncio
import json
import sys
from pathlib import Path

from quicksilver.core import ScoreRequest
from quicksilver.evals.prompt_builder import PromptBuilder
from quicksilver.evals.tasks.multiple_choice import ask, read_question
from quicksilver.llm import LLM
from quicksilver.worker.async_engine import AsyncEngine
from tests.support.weights import MODEL


async def main(path: Path) -> None:
    llm = LLM(MODEL)
    engine = AsyncEngine(llm.engine)
    builder = PromptBuilder(llm.tokenizer, llm.template, engine.info.context_len)
    for number, line in enumerate(path.read_text().splitlines()):
        question = ask(read_question(json.loads(line)), builder)
        scores = await engine.score(ScoreRequest(str(number), question.prompt_ids, question.continuations))
        choices = {"choices": question.continuations, "logprobs": scores.logprobs}
        print(json.dumps({"question": question.prompt_ids, **choices}))
    await engine.close()


if __name__ == "__main__":
    asyncio.run(main(Path(sys.argv[1])))
