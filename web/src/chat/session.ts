// The chat's state and its verbs: send, stop, retry, edit, switch branch. Views read the stores and call the verbs.

import { all, put, remove } from "../store/database";
import { newId } from "../store/identity";
import { record } from "../store/ledger";
import { Store } from "../store/observable";
import { chatFields, settings } from "../store/settings";
import { currentModel } from "../store/server";
import type { Recording } from "../diffusion/recording";
import { restore, save } from "../diffusion/recording_file";
import { breathe } from "../ui/breathe";
import { append, newConversation, path, switchTo, wireMessages, type Conversation, type Message } from "./conversation";
import { cost, readMeter } from "./meter";
import { Run } from "./run";

export const conversations = new Store<Conversation[]>([]);
export const current = new Store<Conversation>(newConversation());
export const running = new Store<Run | null>(null);
/** Recordings of answers, by message id; older ones are read from the database when asked for. */
export const recordings = new Store<ReadonlyMap<string, Recording>>(new Map());

export async function loadConversations(): Promise<void> {
  const found = await all<Conversation>("conversations");
  conversations.update((known) => {
    // A message may have been sent while the database was read.
    const ids = new Set(known.map(({ id }) => id));
    return sorted([...known, ...found.filter(({ id }) => !ids.has(id))]);
  });
}

export function startConversation(): void {
  running.get()?.stop();
  current.set({ ...newConversation(), system: current.get().system });
}

export function openConversation(conversation: Conversation): void {
  running.get()?.stop();
  current.set(conversation);
}

export async function deleteConversation(id: string): Promise<void> {
  const gone = conversations.get().find((conversation) => conversation.id === id);
  conversations.update((known) => known.filter((conversation) => conversation.id !== id));
  if (current.get().id === id) startConversation();
  await remove("conversations", id);
  await Promise.all(Object.keys(gone?.messages ?? {}).map((message) => remove("recordings", message)));
}

export function setSystem(system: string): void {
  keep({ ...current.get(), system });
}

export function rename(id: string, title: string): void {
  const conversation = conversations.get().find((known) => known.id === id);
  if (conversation) keep({ ...conversation, title }, current.get().id === id);
}

/** Says something after `parent`, by default after the last message, and has it answered. */
export async function send(content: string, parent: string | null = current.get().leaf): Promise<void> {
  if (running.get()) return;
  keep(append(current.get(), { id: newId(), parent, role: "user", content }));
  await answer();
}

/** Answers the same message again, as a branch of its own. */
export async function retry(message: Message): Promise<void> {
  if (running.get()) return;
  current.set({ ...current.get(), leaf: message.parent });
  await answer();
}

export function addConversations(added: readonly Conversation[]): void {
  conversations.update((known) => sorted([...added, ...known]));
  for (const conversation of added) void put("conversations", conversation.id, conversation);
}

export function showBranch(id: string): void {
  keep(switchTo(current.get(), id));
}

export function stop(): void {
  running.get()?.stop();
}

export async function findRecording(id: string): Promise<void> {
  if (recordings.get().has(id)) return;
  const recording = await restore(id);
  if (recording) keepRecording(id, recording);
}

async function answer(): Promise<void> {
  const asked = current.get();
  const run = new Run({ ...chatFields(settings.get()), messages: wireMessages(asked) });
  running.set(run);
  await run.start();
  running.set(null);
  const message = messageOf(run, asked.leaf);
  keepRecording(message.id, run.recording);
  const home = conversations.get().find((known) => known.id === asked.id) ?? asked;
  keep(append({ ...home, leaf: asked.leaf }, message), current.get().id === asked.id);
  recordRun(run, "chat");
  await breathe();
  await save(message.id, run.recording);
}

function messageOf(run: Run, parent: string | null): Message {
  const { messages: _, ...sent } = run.body;
  return {
    id: newId(),
    parent,
    role: "assistant",
    content: run.content,
    ...(run.reasoning ? { reasoning: run.reasoning } : {}),
    ...(run.calls.length ? { calls: run.calls } : {}),
    outcome: {
      state: run.state === "stopped" || run.state === "failed" ? run.state : "done",
      finish: run.finish,
      error: run.error,
      model: run.body.model,
      seconds: run.elapsedMs / 1000,
      usage: run.usage,
      sent,
    },
  };
}

export function recordRun(run: Run, kind: string): void {
  if (!run.usage) return;
  record({
    at: Date.now(),
    kind,
    model: run.body.model,
    promptTokens: run.usage.prompt_tokens,
    completionTokens: run.usage.completion_tokens,
    forwards: readMeter(run).forwards,
    seconds: run.elapsedMs / 1000,
    cost: cost(run.usage, currentModel()) ?? 0,
  });
}

function sorted(unordered: Conversation[]): Conversation[] {
  return unordered.sort((a, b) => b.updatedAt - a.updatedAt);
}

function keepRecording(id: string, recording: Recording): void {
  recordings.update((known) => new Map(known).set(id, recording));
}

function keep(conversation: Conversation, isShown = true): void {
  if (isShown) current.set(conversation);
  if (path(conversation).length === 0) return;
  conversations.update((known) => [conversation, ...known.filter(({ id }) => id !== conversation.id)]);
  void put("conversations", conversation.id, conversation);
}
