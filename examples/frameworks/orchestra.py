"""Eight helpers with LangGraph: a planner sends eight tasks, the helpers work in parallel, a writer collects.

All helpers have the brief of `examples.helpers` as their system message, so it is computed once and found in the prompt
cache by the others. Each answer equals that of the same helper alone.
"""

from __future__ import annotations

import asyncio
import operator
import time
from typing import Annotated, Any

from langchain_core.messages import HumanMessage, SystemMessage
from langchain_openai import ChatOpenAI
from langgraph.graph import END, START, StateGraph
from langgraph.types import Send
from typing_extensions import TypedDict

from examples.frameworks.counters import compare, parser, with_decoder
from examples.helpers import BRIEF, TASKS


class Answered(TypedDict):
    task: str
    text: str
    prompt_tokens: int
    cached_tokens: int


class Work(TypedDict):
    tasks: list[str]
    answers: Annotated[list[Answered], operator.add]
    page: str


def model_of(url: str, model: str = "nano", key: str = "none", decoder: str = "verify") -> ChatOpenAI:
    return ChatOpenAI(
        model=model,
        base_url=f"{url}/v1",
        api_key=key,
        temperature=0,
        max_tokens=40,
        timeout=600,
        max_retries=0,
        extra_body=with_decoder(decoder),
    )


def build(llm: ChatOpenAI) -> Any:
    """The compiled graph: planner -> helpers, one for each task -> writer."""

    def plan(state: Work) -> dict[str, Any]:
        return {"tasks": state["tasks"]}

    def send(state: Work) -> list[Send]:
        return [Send("helper", {"task": task}) for task in state["tasks"]]

    async def help_with(state: dict[str, str]) -> dict[str, list[Answered]]:
        reply = await llm.ainvoke([SystemMessage(BRIEF), HumanMessage(state["task"])])
        usage = reply.usage_metadata
        assert usage is not None
        cached = usage.get("input_token_details", {}).get("cache_read", 0)
        answered: Answered = {
            "task": state["task"],
            "text": str(reply.content),
            "prompt_tokens": usage["input_tokens"],
            "cached_tokens": cached,
        }
        return {"answers": [answered]}

    def write(state: Work) -> dict[str, str]:
        by_task = {answer["task"]: answer["text"] for answer in state["answers"]}
        return {"page": "\n".join(by_task[task] for task in state["tasks"])}

    graph = StateGraph(Work)
    graph.add_node("plan", plan)
    graph.add_node("helper", help_with)
    graph.add_node("write", write)
    graph.add_edge(START, "plan")
    graph.add_conditional_edges("plan", send, ["helper"])
    graph.add_edge("helper", "write")
    graph.add_edge("write", END)
    return graph.compile()


async def run(llm: ChatOpenAI, tasks: tuple[str, ...] = TASKS) -> Work:
    return await build(llm).ainvoke({"tasks": list(tasks), "answers": [], "page": ""})


async def main() -> None:
    arguments = parser(__doc__).parse_args()
    address = (arguments.url, arguments.model, arguments.key)
    together = await compare(
        arguments.admin_url, lambda decoder: run(model_of(*address, decoder)), arguments.metrics_key
    )
    start = time.perf_counter()
    alone = [await run(model_of(*address), (task,)) for task in TASKS]
    one_by_one = time.perf_counter() - start
    start = time.perf_counter()
    await run(model_of(*address))
    print(together["page"])
    pages = "\n".join(state["page"] for state in alone)
    print(f"the page of helpers that ran alone is the same: {'yes' if pages == together['page'] else 'no'}")
    print(f"one after another {one_by_one:.2f} s, in parallel {time.perf_counter() - start:.2f} s")


if __name__ == "__main__":
    asyncio.run(main())
