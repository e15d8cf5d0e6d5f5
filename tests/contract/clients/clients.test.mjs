// openai-node and Vercel's AI SDK against a live server: `node --test`, with QUICKSILVER_URL set by run.py.

import assert from "node:assert/strict";
import test from "node:test";

import { createOpenAICompatible } from "@ai-sdk/openai-compatible";
import { generateObject, generateText, stepCountIs, streamText, tool } from "ai";
import OpenAI from "openai";
import { z } from "zod";

const baseURL = `${process.env.QUICKSILVER_URL}/v1`;
const ANSWER = "Paris is the capital of France.";
const QUESTION = "What is the capital of France?";
const messages = [{ role: "user", content: QUESTION }];
const weather = {
  type: "function",
  function: {
    name: "weather",
    parameters: { type: "object", properties: { city: { type: "string" } }, required: ["city"] },
  },
};

const client = new OpenAI({ baseURL, apiKey: "none", maxRetries: 0 });
const model = createOpenAICompatible({ name: "quicksilver", baseURL, supportsStructuredOutputs: true })("mercury-2");

test("openai: chat and usage", async () => {
  const reply = await client.chat.completions.create({ model: "mercury-2", messages });
  assert.equal(reply.choices[0].message.content, ANSWER);
  assert.equal(reply.usage.total_tokens, reply.usage.prompt_tokens + reply.usage.completion_tokens);
});

test("openai: stream", async () => {
  const stream = await client.chat.completions.create({ model: "mercury-2", messages, stream: true });
  let text = "";
  for await (const chunk of stream) text += chunk.choices[0]?.delta?.content ?? "";
  assert.equal(text, ANSWER);
});

test("openai: tools", async () => {
  const reply = await client.chat.completions.create({
    model: "mercury-2",
    messages: [{ role: "user", content: "weather in Paris?" }],
    tools: [weather],
    tool_choice: { type: "function", function: { name: "weather" } },
  });
  assert.deepEqual(JSON.parse(reply.choices[0].message.tool_calls[0].function.arguments), { city: "Paris" });
});

test("openai: schema", async () => {
  const schema = { type: "object", properties: { name: { type: "string" } }, required: ["name"] };
  const reply = await client.chat.completions.create({
    model: "mercury-2",
    messages,
    response_format: { type: "json_schema", json_schema: { name: "person", schema } },
  });
  assert.deepEqual(JSON.parse(reply.choices[0].message.content), { name: "Ada" });
});

test("openai: responses", async () => {
  const reply = await client.responses.create({ model: "mercury-2", input: QUESTION });
  assert.equal(reply.output_text, ANSWER);
  const stream = await client.responses.create({ model: "mercury-2", input: QUESTION, stream: true });
  let text = "";
  for await (const event of stream) if (event.type === "response.output_text.delta") text += event.delta;
  assert.equal(text, ANSWER);
});

test("openai: refusal", async () => {
  await assert.rejects(client.chat.completions.create({ model: "mercury-2", messages, temperature: 9 }), (error) => {
    assert.equal(error.status, 400);
    assert.equal(error.param, "temperature");
    return true;
  });
});

test("openai: abort", async () => {
  const poem = [{ role: "user", content: "a long poem" }];
  const stream = await client.chat.completions.create({ model: "mercury-2", messages: poem, stream: true });
  for await (const chunk of stream) {
    assert.ok(chunk.id);
    stream.controller.abort();
    break;
  }
  const reply = await client.chat.completions.create({ model: "mercury-2", messages });
  assert.equal(reply.choices[0].message.content, ANSWER);
});

test("ai: text with usage", async () => {
  const { text, usage } = await generateText({ model, prompt: QUESTION, maxRetries: 0 });
  assert.equal(text, ANSWER);
  assert.equal(usage.outputTokens, ANSWER.length);
});

test("ai: stream with reasoning", async () => {
  const result = streamText({
    model,
    prompt: QUESTION,
    maxRetries: 0,
    providerOptions: { quicksilver: { reasoningEffort: "low" } },
  });
  let text = "";
  for await (const part of result.textStream) text += part;
  assert.equal(text, ANSWER);
  assert.equal(await result.reasoningText, "Let me think.");
});

test("ai: object", async () => {
  const schema = z.object({ name: z.string(), age: z.number().int() });
  const { object } = await generateObject({ model, schema, prompt: "Who?", maxRetries: 0 });
  assert.deepEqual(object, { name: "Ada", age: 36 });
});

test("ai: tool loop", async () => {
  const seen = [];
  const tools = {
    weather: tool({
      description: "Weather in a city",
      inputSchema: z.object({ city: z.string() }),
      execute: async ({ city }) => {
        seen.push(city);
        return "tool result: sunny";
      },
    }),
  };
  const options = { model, tools, prompt: "What is the weather in Paris?", stopWhen: stepCountIs(3), maxRetries: 0 };
  const { text } = await generateText(options);
  assert.deepEqual(seen, ["Paris"]);
  assert.equal(text, "It is sunny.");
});

test("ai: refusal and abort", async () => {
  await assert.rejects(generateText({ model, prompt: QUESTION, temperature: 9, maxRetries: 0 }), /temperature/);
  const controller = new AbortController();
  const result = streamText({ model, prompt: "a long poem", abortSignal: controller.signal, maxRetries: 0 });
  for await (const part of result.fullStream) {
    if (part.type === "text-delta") controller.abort();
  }
  assert.ok(controller.signal.aborted);
});
