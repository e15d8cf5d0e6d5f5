// A run: what a stream adds up to, whatever its style and however it ends.

import { afterEach, describe, expect, test, vi } from "vitest";
import { Run } from "../src/chat/run";
import { formatReading, readMeter } from "../src/chat/meter";
import type { ChatBody } from "../src/wire/types";

const BODY: ChatBody = { model: "m", messages: [], stream: true };

function serve(chunks: object[], cut = 7): void {
  const text =
    chunks.map((chunk) => `data: ${JSON.stringify(chunk)}\r\n\r\n`).join("") + ": comment\n\ndata: [DONE]\n\n";
  const bytes = new TextEncoder().encode(text);
  const pieces = Array.from({ length: Math.ceil(bytes.length / cut) }, (_, i) => bytes.slice(i * cut, (i + 1) * cut));
  vi.stubGlobal("fetch", async () => new Response(streamOf(pieces)));
}

function streamOf(pieces: Uint8Array[]): ReadableStream<Uint8Array> {
  return new ReadableStream({
    start(controller) {
      for (const piece of pieces) controller.enqueue(piece);
      controller.close();
    },
  });
}

function said(delta: object, extra: object = {}): object {
  return { choices: [{ delta, finish_reason: null }], ...extra };
}

afterEach(() => vi.unstubAllGlobals());

describe("a stream", () => {
  test("appends when plain, cut anywhere", async () => {
    serve([said({ content: "Grüße " }), said({ content: "👋" })], 3);
    const run = new Run(BODY);
    await run.start();
    expect(run.content).toBe("Grüße 👋");
    expect(run.state).toBe("done");
  });
  test("replaces under diffusing", async () => {
    const tokens = [
      ["a", "committed", 0.9],
      ["x", "masked", 0.5],
    ];
    const detail = { step: 1, committed: 1, decided: 0, masked: 1, confidence: 0.5, shown: 1, tokens };
    serve([said({ content: "ax" }, { quicksilver: detail }), said({ content: "ab" })]);
    const run = new Run({ ...BODY, diffusing: true });
    await run.start();
    expect(run.content).toBe("ab");
    expect([0, 1].map((i) => run.recording.contentAt(i))).toEqual(["ax", "ab"]);
  });
  test("puts tool calls together", async () => {
    const first = { index: 0, id: "c", function: { name: "f", arguments: '{"a"' } };
    serve([said({ tool_calls: [first] }), said({ tool_calls: [{ index: 0, function: { arguments: ":1}" } }] })]);
    const run = new Run(BODY);
    await run.start();
    expect(run.calls).toEqual([{ id: "c", type: "function", function: { name: "f", arguments: '{"a":1}' } }]);
  });
  test("that holds an error fails with its message", async () => {
    serve([said({ content: "half" }), { error: { message: "the worker died" } }]);
    const run = new Run(BODY);
    await run.start();
    expect([run.state, run.error, run.content]).toEqual(["failed", "the worker died", "half"]);
  });
  test("counts exactly once usage came", async () => {
    const usage = { completion_tokens: 12, quicksilver: { forwards: 4 } };
    serve([said({ content: "x" }), { choices: [], usage }]);
    const run = new Run(BODY);
    await run.start();
    expect(readMeter(run)).toMatchObject({ tokens: 12, forwards: 4, tokensPerForward: 3 });
    expect(formatReading(readMeter(run))).toContain("3.00 tokens/forward");
  });
});

test("a refusal says what the server said", async () => {
  vi.stubGlobal(
    "fetch",
    async () => new Response('{"error": {"message": "too long", "param": null}}', { status: 400 }),
  );
  const run = new Run(BODY);
  await run.start();
  expect([run.state, run.error]).toEqual(["failed", "too long"]);
});
