"""The search of `examples.rag` with LlamaIndex: a BM25 retriever, a re-ranker that needs one request, cited answers.

The retriever and the re-ranker are components of LlamaIndex, so each can be replaced by another one. The re-ranker asks
`/v1/decisions` about all candidates at once: the passages are computed one time, and each candidate is a short question
after them.
"""

from __future__ import annotations

import asyncio
import json
from dataclasses import dataclass

import httpx
from llama_index.core.base.base_retriever import BaseRetriever
from llama_index.core.llms import ChatMessage
from llama_index.core.postprocessor.types import BaseNodePostprocessor
from llama_index.core.schema import NodeWithScore, QueryBundle, TextNode
from llama_index.llms.openai_like import OpenAILike

from examples.frameworks.counters import compare, parser, with_decoder
from examples.rag import PASSAGES, QUESTIONS, Cited, bm25, show


class Bm25Retriever(BaseRetriever):
    """The best passages by their words. Scores are ranks: the first has the highest."""

    def _retrieve(self, query_bundle: QueryBundle) -> list[NodeWithScore]:
        names = bm25(query_bundle.query_str, 5)
        nodes = [TextNode(id_=name, text=PASSAGES[name]) for name in names]
        return [NodeWithScore(node=node, score=1 / rank) for rank, node in enumerate(nodes, start=1)]


class DecisionReranker(BaseNodePostprocessor):
    """Orders nodes by the probability that they answer the question, in one request."""

    url: str
    model: str
    key: str
    top_n: int = 3

    def _postprocess_nodes(
        self, nodes: list[NodeWithScore], query_bundle: QueryBundle | None = None
    ) -> list[NodeWithScore]:
        assert query_bundle is not None
        names = [node.node.node_id for node in nodes]
        asked = [
            {"type": "predicate", "name": name, "instructions": f"Does passage [{name}] answer the question?"}
            for name in names
        ]
        body = {
            "model": self.model,
            "input": f"{show(names)}\n\nQuestion: {query_bundle.query_str}",
            "questions": asked,
        }
        headers = {"authorization": f"Bearer {self.key}"}
        reply = httpx.post(f"{self.url}/v1/decisions", json=body, headers=headers, timeout=600).raise_for_status()
        for node, answer in zip(nodes, reply.json()["answers"], strict=True):
            node.score = answer["probability"]
        return sorted(nodes, key=lambda node: -(node.score or 0))[: self.top_n]


@dataclass
class Search:
    retriever: Bm25Retriever
    reranker: DecisionReranker
    llm: OpenAILike

    def answer(self, question: str) -> Cited:
        found = self.reranker.postprocess_nodes(self.retriever.retrieve(question), query_str=question)
        names = [node.node.node_id for node in found]
        properties = {"passage": {"enum": names}, "answer": {"type": "string", "maxLength": 120}}
        schema = {
            "type": "object",
            "properties": properties,
            "required": list(properties),
            "additionalProperties": False,
        }
        prompt = f"{show(names)}\n\nAnswer from the passages, in JSON with the id of the passage. {question}"
        form = {"type": "json_schema", "json_schema": {"name": "cited", "schema": schema}}
        reply = self.llm.chat([ChatMessage(role="user", content=prompt)], response_format=form)
        told = json.loads(reply.message.content or "")
        return Cited(question, names, told["answer"], told["passage"])


def search_of(url: str, model: str = "nano", key: str = "none", decoder: str = "verify") -> Search:
    llm = OpenAILike(
        model=model,
        api_base=f"{url}/v1",
        api_key=key,
        temperature=0,
        max_tokens=96,
        is_chat_model=True,
        context_window=8192,
        timeout=600,
        additional_kwargs={"extra_body": with_decoder(decoder)},
    )
    return Search(Bm25Retriever(), DecisionReranker(url=url, model=model, key=key), llm)


async def main() -> None:
    arguments = parser(__doc__).parse_args()

    async def run(decoder: str) -> list[Cited]:
        search = search_of(arguments.url, arguments.model, arguments.key, decoder)
        return [await asyncio.to_thread(search.answer, question) for question in QUESTIONS]

    answers = await compare(arguments.admin_url, run, arguments.metrics_key)
    for cited in answers:
        print(f"{cited.question} {cited.answer} [{cited.passage}]")
    right = sum(cited.passage == QUESTIONS[cited.question] for cited in answers)
    print(f"right passage cited: {right} of {len(answers)}")


if __name__ == "__main__":
    asyncio.run(main())
