// Conversations as a file: what is written comes back, and every fault of a file is named.

import { describe, expect, test } from "vitest";
import { readArchive, writeArchive } from "../src/chat/archive";
import { append, newConversation, path } from "../src/chat/conversation";
import { search } from "../src/chat/search";
import { docsHref } from "../src/panels/docs";
import { forwardsShown } from "../src/diffusion/lane";
import { Run } from "../src/chat/run";

const asked = append(newConversation(), { id: "a", parent: null, role: "user", content: "What is\n<b>this</b>?" });
const CONVERSATION = append(asked, { id: "b", parent: "a", role: "assistant", content: "A test.", reasoning: "Hm." });

function fault(change: (file: any) => void): () => unknown {
  const file = JSON.parse(writeArchive([CONVERSATION]));
  change(file);
  return () => readArchive(JSON.stringify(file));
}

describe("an archive", () => {
  test("comes back as it was, under new ids", () => {
    const [read] = readArchive(writeArchive([CONVERSATION]));
    expect(read?.id).not.toBe(CONVERSATION.id);
    expect(read && path(read).map(({ role, content, reasoning }) => [role, content, reasoning])).toEqual([
      ["user", "What is\n<b>this</b>?", undefined],
      ["assistant", "A test.", "Hm."],
    ]);
    expect(read?.title).toBe(CONVERSATION.title);
  });
  test("is refused with the fault named", () => {
    expect(() => readArchive("{")).toThrow("not JSON");
    expect(() => readArchive("[]")).toThrow("not an object");
    expect(fault((file) => (file.format = "other"))).toThrow("no conversations of this playground");
    expect(fault((file) => (file.version = 9))).toThrow("version 9");
    expect(fault((file) => (file.conversations[0].title = 3))).toThrow("Conversation 1, title: not a text");
    expect(fault((file) => (file.conversations[0].leaf = "gone"))).toThrow("leaf: there is no such message");
    expect(fault((file) => (file.conversations[0].messages.a.role = "system"))).toThrow("unknown role");
    expect(fault((file) => (file.conversations[0].messages.a.content = null))).toThrow("not a text");
    expect(fault((file) => (file.conversations[0].messages.a.parent = "b"))).toThrow("circle");
  });
  test("drops fields that it does not know", () => {
    const text = writeArchive([CONVERSATION]).replace('"content"', '"dangerouslySetInnerHTML": {"__html": "x"}, "content"');
    expect(JSON.stringify(readArchive(text))).not.toContain("dangerouslySetInnerHTML");
  });
});

test("search takes every word, from any message", () => {
  expect(search([CONVERSATION], "TEST what")).toHaveLength(1);
  expect(search([CONVERSATION], "test nothing")).toHaveLength(0);
  expect(search([CONVERSATION], " ")).toHaveLength(1);
});

test("links between pages of the docs stay in the panel, others are left alone", () => {
  expect(docsHref("guides/code.md", "../reference/http-api.md#errors")).toBe("#/docs/reference/http-api.md");
  expect(docsHref("guides/code.md", "chat.md")).toBe("#/docs/guides/chat.md");
  expect(docsHref("guides/code.md", "https://example.com/a.md")).toBeNull();
  expect(docsHref("guides/code.md", "javascript:alert(1)//.md")).toBeNull();
});

test("a complete answer shows the forwards of its usage, not those of its last frame", () => {
  const run = new Run({ model: "m", messages: [] });
  const counts = { prompt_tokens: 1, completion_tokens: 19, total_tokens: 20, reasoning_tokens: 0, cached_input_tokens: 0 };
  run.usage = { ...counts, quicksilver: { forwards: 20, tokens_per_forward: 0.95 } };
  expect(forwardsShown(run, 19, true)).toBe(20);
  expect(forwardsShown(run, 7, false)).toBe(7);
});
