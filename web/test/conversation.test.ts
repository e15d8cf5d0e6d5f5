// Conversations: branches, the path that is sent, and titles.

import { describe, expect, test } from "vitest";
import {
  append,
  newConversation,
  path,
  siblings,
  switchTo,
  wireMessages,
  type Conversation,
  type Message,
} from "../src/chat/conversation";

function message(id: string, parent: string | null, role: Message["role"] = "user"): Message {
  return { id, parent, role, content: `text of ${id}` };
}

function branched(): Conversation {
  const messages = [
    message("q", null),
    message("a1", "q", "assistant"),
    message("q2", "a1"),
    message("a2", "q", "assistant"),
  ];
  return messages.reduce(append, newConversation());
}

describe("a conversation", () => {
  test("shows the path to its leaf", () => {
    expect(path(branched()).map(({ id }) => id)).toEqual(["q", "a2"]);
  });
  test("keeps every branch, and goes down to its end", () => {
    const other = switchTo(branched(), "a1");
    expect(path(other).map(({ id }) => id)).toEqual(["q", "a1", "q2"]);
    expect(siblings(other, other.messages["a1"]!).map(({ id }) => id)).toEqual(["a1", "a2"]);
  });
  test("is named by its first words, once", () => {
    expect(branched().title).toBe("text of q");
  });
  test("sends the system prompt first, when there is one", () => {
    expect(wireMessages(branched())[0]).toEqual({ role: "user", content: "text of q" });
    expect(wireMessages({ ...branched(), system: "Be brief." })[0]).toEqual({ role: "system", content: "Be brief." });
  });
  test("sends calls and their results", () => {
    const call = { id: "c1", type: "function" as const, function: { name: "f", arguments: "{}" } };
    const asked = append(branched(), { ...message("a3", "a2", "assistant"), calls: [call] });
    const told = append(asked, { ...message("t", "a3", "tool"), callId: "c1" });
    expect(wireMessages(told).slice(-2)).toMatchObject([{ tool_calls: [call] }, { role: "tool", tool_call_id: "c1" }]);
  });
});
