// A conversation is a tree: editing or retrying adds a sibling, and the path from the root to `leaf` is what is shown
// and sent. Nothing is lost by branching. Pure data; every change returns a new conversation.

import { newId } from "../store/identity";
import type { ChatBody, ToolCall, Usage, WireMessage } from "../wire/types";

export interface Message {
  id: string;
  parent: string | null;
  role: "user" | "assistant" | "tool";
  content: string;
  reasoning?: string;
  calls?: ToolCall[];
  callId?: string;
  /** Of an answer: how it ended and what it took. */
  outcome?: Outcome;
}

export interface Outcome {
  state: "done" | "stopped" | "failed";
  finish: string | null;
  error: string | null;
  model: string;
  seconds: number;
  usage: Usage | null;
  /** The request without its messages; unknown for an imported answer. */
  sent?: Omit<ChatBody, "messages">;
}

export interface Conversation {
  id: string;
  title: string;
  system: string;
  updatedAt: number;
  leaf: string | null;
  messages: Record<string, Message>;
}

export function newConversation(): Conversation {
  return { id: newId(), title: "", system: "", updatedAt: Date.now(), leaf: null, messages: {} };
}

/** Adds a message under its parent and makes it the leaf. The first words name the conversation. */
export function append(conversation: Conversation, message: Message): Conversation {
  const title = conversation.title || message.content.trim().split("\n")[0]?.slice(0, 60) || "";
  return {
    ...conversation,
    title,
    updatedAt: Date.now(),
    leaf: message.id,
    messages: { ...conversation.messages, [message.id]: message },
  };
}

/** From the first message to the leaf. */
export function path(conversation: Conversation): Message[] {
  const messages: Message[] = [];
  let id = conversation.leaf;
  while (id !== null) {
    const message: Message | undefined = conversation.messages[id];
    if (!message) break;
    messages.unshift(message);
    id = message.parent;
  }
  return messages;
}

/** Messages with the same parent, oldest first. */
export function siblings(conversation: Conversation, message: Message): Message[] {
  return Object.values(conversation.messages).filter((other) => other.parent === message.parent);
}

/** Shows another branch, down to its newest end. */
export function switchTo(conversation: Conversation, id: string): Conversation {
  let leaf = id;
  for (;;) {
    const child = Object.values(conversation.messages).findLast((message) => message.parent === leaf);
    if (!child) return { ...conversation, leaf };
    leaf = child.id;
  }
}

export function wireMessages(conversation: Conversation): WireMessage[] {
  const system: WireMessage[] = conversation.system.trim() ? [{ role: "system", content: conversation.system }] : [];
  return [...system, ...path(conversation).map(wireMessage)];
}

/** The messages that an answer was asked with. */
export function messagesBefore(conversation: Conversation, answer: Message): WireMessage[] {
  return wireMessages({ ...conversation, leaf: answer.parent });
}

function wireMessage(message: Message): WireMessage {
  const wire: WireMessage = { role: message.role, content: message.content };
  if (message.calls?.length) return { ...wire, tool_calls: message.calls };
  return message.callId ? { ...wire, tool_call_id: message.callId } : wire;
}
