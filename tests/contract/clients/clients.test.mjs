// openai-node and Vercel's AI SDK against a live server with real weights: `node --test`, with addresses set by run.py.

import assert from "node:assert/strict";
import test from "node:test";
import { setTimeout as sleep } from "node:timers/promises";

import { createAnthropic } from "@ai-sdk/anthropic";
import { createOpenAI } from "@ai-sdk/openai";
import { createOpenAICompatible } from "@ai-sdk/openai-compatible";
import { generateObject, generateText, stepCountIs, streamText, tool } from "ai";
import OpenAI from "openai";
import { z } from "zod";

const baseURL = `${process.env.QUICKSILVER_URL}/v1`;
const QUESTION = "What is the capital of France?";
const STORY = "Write a very long story about a dragon, with many chapters.";
const DESCRIBE = "Describe a person called Ada, aged 36, as JSON.";
const WEATHER = "What is the weather in Paris?";
const person = z.object({ name: z.string().max(20), age: z.number().int().min(0) }).strict();
const weather = {
  type: "function",
  function: {
    name: "weather",
    description: "Current weather of a city",
    parameters: { type: "object", properties: { city: { type: "string", maxLength: 20 } }, required: ["city"] },
  },
};

const client = new OpenAI({ baseURL, apiKey: "none", maxRetries: 0 });
const model = createOpenAICompatible({ name: "quicksilver", baseURL, supportsStructuredOutputs: true })("mercury-2");
const asking = (content) => ({ model: "mercury-2", messages: [{ role: "user", content }], temperature: 0, max_tokens: 80 });
// The second provider talks to /v1/responses and names what the server wrote by its id; the third one to /v1/messages.
const byResponses = createOpenAI({ baseURL, apiKey: "none" })("mercury-2");
const byMessages = createAnthropic({ baseURL, apiKey: "none" })("mercury-2");
const prompting = (prompt) => ({ model, prompt, temperature: 0, maxOutputTokens: 80, maxRetries: 0 });

async function figure(name) {
  const text = await (await fetch(`${process.env.QUICKSILVER_ADMIN_URL}/metrics`)).text();
  return Number(text.match(new RegExp(`^quicksilver_${name}\\{[^}]*\\} (\\S+)$`, "m"))[1]);
}

// What `leave` does must end one request in the engine before it is finished, and free its slot.
async function expectAbort(leave) {
  const before = await figure("aborts_total");
  await leave();
  const deadline = Date.now() + 10_000;
  while ((await figure("aborts_total")) === before || (await figure("num_requests_running"))) {
    assert.ok(Date.now() < deadline, "the reader left, and the engine went on");
    await sleep(20);
  }
}

test("openai: chat and usage", async () => {
  const reply = await client.chat.completions.create(asking(QUESTION));
  assert.match(reply.choices[0].message.content, /Paris/);
  assert.equal(reply.usage.total_tokens, reply.usage.prompt_tokens + reply.usage.completion_tokens);
});

test("openai: stream", async () => {
  const runner = client.chat.completions.stream(asking(QUESTION));
  let text = "";
  runner.on("content", (delta) => (text += delta));
  assert.equal(await runner.finalContent(), text);
  assert.match(text, /Paris/);
});

test("openai: tools", async () => {
  const choice = { type: "function", function: { name: "weather" } };
  const reply = await client.chat.completions.create({ ...asking(WEATHER), tools: [weather], tool_choice: choice });
  const given = JSON.parse(reply.choices[0].message.tool_calls[0].function.arguments);
  assert.equal(typeof given.city, "string");
  assert.equal(reply.choices[0].finish_reason, "tool_calls");
});

test("openai: schema", async () => {
  const schema = z.toJSONSchema(person);
  const format = { type: "json_schema", json_schema: { name: "person", strict: true, schema } };
  const reply = await client.chat.completions.create({ ...asking(DESCRIBE), response_format: format });
  person.parse(JSON.parse(reply.choices[0].message.content));
});

test("openai: responses", async () => {
  const body = { model: "mercury-2", input: QUESTION, temperature: 0, max_output_tokens: 80 };
  const reply = await client.responses.create(body);
  assert.match(reply.output_text, /Paris/);
  let text = "";
  for await (const event of await client.responses.create({ ...body, stream: true })) {
    if (event.type === "response.output_text.delta") text += event.delta;
  }
  assert.equal(text, reply.output_text);
});

test("openai: refusal", async () => {
  await assert.rejects(client.chat.completions.create({ ...asking(QUESTION), temperature: 9 }), (error) => {
    assert.equal(error.status, 400);
    assert.equal(error.param, "temperature");
    return true;
  });
});

test("openai: abort", async () => {
  await expectAbort(async () => {
    const stream = await client.chat.completions.create({ ...asking(STORY), max_tokens: 4000, temperature: 0, stream: true });
    for await (const chunk of stream) {
      assert.ok(chunk.id);
      stream.controller.abort();
      break;
    }
  });
});

test("ai: text with usage", async () => {
  const { text, usage } = await generateText(prompting(QUESTION));
  assert.match(text, /Paris/);
  assert.ok(usage.outputTokens > 0);
});

test("ai: stream", async () => {
  let text = "";
  for await (const part of streamText(prompting(QUESTION)).textStream) text += part;
  assert.match(text, /Paris/);
});

test("ai: reasoning", async () => {
  const options = { quicksilver: { reasoningEffort: "low" } };
  const result = streamText({ ...prompting(QUESTION), providerOptions: options });
  await result.consumeStream();
  assert.ok((await result.reasoningText).length > 0);
});

test("ai: object", async () => {
  const { object } = await generateObject({ ...prompting(DESCRIBE), schema: person });
  person.parse(object);
});

test("ai: tool loop", async () => {
  const seen = [];
  const tools = {
    weather: tool({
      description: "Current weather of a city",
      inputSchema: z.object({ city: z.string().max(20) }),
      execute: async ({ city }) => {
        seen.push(city);
        return "sunny, 21 degrees";
      },
    }),
  };
  const { steps } = await generateText({ ...prompting(WEATHER), tools, toolChoice: "required", stopWhen: stepCountIs(2) });
  assert.equal(steps.length, 2);
  assert.equal(typeof seen[0], "string");
});

for (const [name, provider] of [["openai", byResponses], ["anthropic", byMessages]]) {
  test(`ai: tools and a second question, provider ${name}`, async () => {
    const tools = {
      weather: tool({ inputSchema: z.object({ city: z.string().max(20) }), execute: async () => "sunny, 21 degrees" }),
    };
    const settings = { ...prompting(WEATHER), model: provider, tools };
    const prepareStep = ({ stepNumber }) => ({ toolChoice: stepNumber ? "none" : "required" });
    const first = await generateText({ ...settings, prepareStep, stopWhen: stepCountIs(2) });
    assert.equal(first.steps.length, 2);
    const asked = { role: "user", content: WEATHER };
    const messages = [asked, ...first.response.messages, { role: "user", content: QUESTION }];
    const second = await generateText({ ...settings, prompt: undefined, messages, toolChoice: "none" });
    assert.ok(second.text.length > 0);
  });
}

test("ai: refusal", async () => {
  await assert.rejects(generateText({ ...prompting(QUESTION), temperature: 9 }), /temperature/);
});

test("ai: abort", async () => {
  await expectAbort(async () => {
    const controller = new AbortController();
    const result = streamText({ ...prompting(STORY), maxOutputTokens: 4000, temperature: 0, abortSignal: controller.signal });
    for await (const part of result.fullStream) {
      if (part.type === "text-delta") controller.abort();
    }
  });
});
