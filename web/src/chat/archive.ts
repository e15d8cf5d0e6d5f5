// Conversations as a file: written for export, and read back with every field checked. A file may come from anywhere, so
// nothing in it is trusted: unknown fields are dropped, and every id is replaced.

import { newId } from "../store/identity";
import type { ToolCall } from "../wire/types";
import type { Conversation, Message, Outcome } from "./conversation";

const FORMAT = "quicksilver-conversations";
const VERSION = 1;
const MAX_CHARS = 64 * 2 ** 20;
type Fields = Record<string, unknown>;

export function writeArchive(conversations: readonly Conversation[]): string {
  return JSON.stringify({ format: FORMAT, version: VERSION, conversations }, null, 1);
}

/** Raises an Error whose message names the first fault of the file. */
export function readArchive(text: string): Conversation[] {
  if (text.length > MAX_CHARS) throw new Error("The file is larger than 64 MB.");
  const file = fieldsOf(parse(text), "The file");
  if (file["format"] !== FORMAT) throw new Error("The file holds no conversations of this playground.");
  if (file["version"] !== VERSION) throw new Error(`The file has version ${String(file["version"])}, not ${VERSION}.`);
  if (!Array.isArray(file["conversations"])) throw new Error("The file has no list of conversations.");
  return file["conversations"].map((item, i) => readConversation(item, `Conversation ${i + 1}`));
}

function parse(text: string): unknown {
  try {
    return JSON.parse(text);
  } catch {
    throw new Error("The file is not JSON.");
  }
}

function readConversation(item: unknown, place: string): Conversation {
  const fields = fieldsOf(item, place);
  const entries = Object.entries(fieldsOf(fields["messages"], `${place}, messages`));
  const ids = new Map(entries.map(([id]) => [id, newId()]));
  const messages = entries.map(([id, value]) => readMessage(value, ids, ids.get(id) ?? "", `${place}, message ${id}`));
  const known = Object.fromEntries(messages.map((message) => [message.id, message]));
  checkRoots(known, place);
  const updatedAt = fields["updatedAt"];
  return {
    id: newId(),
    title: textOf(fields["title"], `${place}, title`),
    system: textOf(fields["system"], `${place}, system`),
    updatedAt: typeof updatedAt === "number" && Number.isFinite(updatedAt) ? updatedAt : 0,
    leaf: linkOf(fields["leaf"], ids, `${place}, leaf`),
    messages: known,
  };
}

function readMessage(item: unknown, ids: Map<string, string>, id: string, place: string): Message {
  const fields = fieldsOf(item, place);
  const { role, reasoning, calls, callId, outcome } = fields;
  if (role !== "user" && role !== "assistant" && role !== "tool") throw new Error(`${place}: unknown role.`);
  return {
    id,
    parent: linkOf(fields["parent"], ids, `${place}, parent`),
    role,
    content: textOf(fields["content"], `${place}, content`),
    ...(typeof reasoning === "string" ? { reasoning } : {}),
    ...(Array.isArray(calls) ? { calls: calls.map((call) => readCall(call, place)) } : {}),
    ...(typeof callId === "string" ? { callId } : {}),
    ...(outcome === undefined ? {} : { outcome: readOutcome(outcome, place) }),
  };
}

function readCall(item: unknown, place: string): ToolCall {
  const fields = fieldsOf(item, `${place}, call`);
  const called = fieldsOf(fields["function"], `${place}, function`);
  const name = textOf(called["name"], `${place}, name of the function`);
  const text = textOf(called["arguments"], `${place}, arguments`);
  return { id: textOf(fields["id"], `${place}, id of the call`), type: "function", function: { name, arguments: text } };
}

function readOutcome(item: unknown, place: string): Outcome {
  const { state, finish, error, model, seconds } = fieldsOf(item, `${place}, outcome`);
  return {
    state: state === "stopped" || state === "failed" ? state : "done",
    finish: typeof finish === "string" ? finish : null,
    error: typeof error === "string" ? error : null,
    model: typeof model === "string" ? model : "",
    seconds: typeof seconds === "number" && Number.isFinite(seconds) ? seconds : 0,
    // Token counts belong to the server that answered.
    usage: null,
  };
}

/** Every message must lead to a first one; a circle would never end. */
function checkRoots(messages: Record<string, Message>, place: string): void {
  const rooted = new Set<string>();
  for (const start of Object.keys(messages)) {
    const walked = new Set<string>();
    for (let id: string | null = start; id !== null && !rooted.has(id); id = messages[id]?.parent ?? null) {
      if (walked.has(id)) throw new Error(`${place}: its messages form a circle.`);
      walked.add(id);
    }
    for (const id of walked) rooted.add(id);
  }
}

function linkOf(value: unknown, ids: Map<string, string>, place: string): string | null {
  if (value === null) return null;
  const id = typeof value === "string" ? ids.get(value) : undefined;
  if (id === undefined) throw new Error(`${place}: there is no such message.`);
  return id;
}

function fieldsOf(value: unknown, place: string): Fields {
  if (typeof value !== "object" || value === null || Array.isArray(value)) throw new Error(`${place}: not an object.`);
  return value as Fields;
}

function textOf(value: unknown, place: string): string {
  if (typeof value !== "string") throw new Error(`${place}: not a text.`);
  return value;
}
