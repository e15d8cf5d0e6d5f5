// What the browser keeps: conversations come back, settings shape requests, and no key is ever stored.

import "fake-indexeddb/auto";
import { beforeEach, expect, test, vi } from "vitest";
import {
  addConversations,
  conversations,
  current,
  loadConversations,
  rename,
  retry,
  send,
  showBranch,
  startConversation,
} from "../src/chat/session";
import { newConversation, path, siblings } from "../src/chat/conversation";
import { all, clear } from "../src/store/database";
import { change, chatFields, loadSettings, settings } from "../src/store/settings";
import { holdKey } from "../src/wire/client";

const sent: { url: string; init: RequestInit }[] = [];

beforeEach(async () => {
  sent.length = 0;
  vi.stubGlobal("fetch", async (url: string, init: RequestInit) => {
    sent.push({ url, init });
    const chunk = { choices: [{ delta: { content: `answer ${sent.length}` }, finish_reason: "stop" }] };
    return new Response(`data: ${JSON.stringify(chunk)}\n\ndata: [DONE]\n\n`);
  });
  await clear("conversations");
  conversations.set([]);
  startConversation();
});

test("a conversation comes back from the database", async () => {
  await send("hello");
  await loadConversations();
  expect(path(conversations.get()[0]!).map(({ content }) => content)).toEqual(["hello", "answer 1"]);
});

test("a conversation that is added while the others are read stays in the list", async () => {
  await send("hello");
  conversations.set([]);
  const loading = loadConversations();
  addConversations([{ ...newConversation(), title: "added" }]);
  await loading;
  expect(conversations.get().map(({ title }) => title).sort()).toEqual(["added", "hello"]);
});

test("retry and edit add branches beside what was there", async () => {
  await send("hello");
  const [question, answer] = path(current.get());
  await retry(answer!);
  expect(siblings(current.get(), answer!)).toHaveLength(2);
  await send("hello again", question!.parent);
  expect(siblings(current.get(), question!)).toHaveLength(2);
  showBranch(question!.id);
  expect(path(current.get()).map(({ content }) => content)).toEqual(["hello", "answer 2"]);
});

test("a new title stays", async () => {
  await send("hello");
  rename(current.get().id, "Greetings");
  expect(conversations.get()[0]?.title).toBe("Greetings");
});

test("settings shape the request", async () => {
  change({ model: "nano", seed: "7", effort: "low", decoder: "edit", canvasLen: 8, showsDiffusion: false });
  await send("hello");
  const body = JSON.parse(String(sent[0]?.init.body)) as Record<string, unknown>;
  expect(body).toMatchObject({
    model: "nano",
    seed: 7,
    reasoning_effort: "low",
    decoder: { name: "edit", canvas_len: 8 },
  });
  expect(body["diffusing"]).toBeUndefined();
  expect(chatFields({ ...settings.get(), showsDiffusion: true }).diffusion_detail).toBe("tokens");
});

test("settings are kept, a key is not", async () => {
  holdKey("qs-secret");
  change({ temperature: 0.5 });
  await send("hello");
  await loadSettings();
  expect(settings.get().temperature).toBe(0.5);
  expect((sent[0]?.init.headers as Record<string, string>)["authorization"]).toBe("Bearer qs-secret");
  const shelves = await Promise.all(
    (["conversations", "recordings", "settings", "requests"] as const).map((shelf) => all(shelf)),
  );
  expect(JSON.stringify(shelves)).not.toContain("qs-secret");
  expect(sent[0]?.url).not.toContain("qs-secret");
  holdKey("");
});
