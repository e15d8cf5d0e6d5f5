// One answer in the making: a request, its stream, and everything it has told so far.
// Under `diffusing` content replaces, else it appends; a stopped run keeps the committed text and nothing of the canvas.

import { streamChat } from "../wire/client";
import type { ChatBody, ChatChunk, ToolCall, ToolCallDelta, Usage } from "../wire/types";
import { breathe } from "../ui/breathe";
import { Recording } from "../diffusion/recording";

/** Runs under way, of every panel. */
const active = new Set<Run>();

export function stopAll(): void {
  for (const run of active) run.stop();
}

/** Each run has the server to itself. Once one is stopped, those after it are too. */
export async function startInTurn(runs: readonly Run[], onEnd: (run: Run) => void): Promise<void> {
  for (const [i, run] of runs.entries()) {
    await run.start();
    onEnd(run);
    if (run.state === "stopped") for (const later of runs.slice(i + 1)) later.stop();
  }
}

export type RunState = "waiting" | "running" | "done" | "stopped" | "failed";

export class Run {
  readonly recording = new Recording();
  readonly calls: ToolCall[] = [];
  content = "";
  reasoning = "";
  state: RunState = "waiting";
  finish: string | null = null;
  usage: Usage | null = null;
  error: string | null = null;
  elapsedMs = 0;
  private startedAt = 0;
  private readonly abort = new AbortController();
  private readonly listeners = new Set<() => void>();

  constructor(readonly body: ChatBody) {}

  /** Resolves when the answer has ended, however it did. */
  async start(): Promise<void> {
    this.startedAt = performance.now();
    active.add(this);
    try {
      for await (const chunk of streamChat(this.body, this.abort.signal)) this.take(chunk);
      await this.end("done");
    } catch (error) {
      this.error = this.abort.signal.aborted ? null : String((error as Error).message);
      await this.end(this.abort.signal.aborted ? "stopped" : "failed");
    }
  }

  stop(): void {
    this.abort.abort();
  }

  listen(listener: () => void): () => void {
    this.listeners.add(listener);
    return () => this.listeners.delete(listener);
  }

  get isOver(): boolean {
    return this.state !== "waiting" && this.state !== "running";
  }

  get elapsed(): number {
    return this.isOver || this.startedAt === 0 ? this.elapsedMs : performance.now() - this.startedAt;
  }

  private take(chunk: ChatChunk): void {
    this.state = "running";
    this.usage = chunk.usage ?? this.usage;
    for (const choice of chunk.choices) {
      this.reasoning += choice.delta.reasoning_content ?? "";
      for (const call of choice.delta.tool_calls ?? []) this.takeCall(call);
      this.takeContent(choice.delta.content ?? null, chunk);
      this.finish = choice.finish_reason ?? this.finish;
    }
    this.tell();
  }

  private takeContent(content: string | null, chunk: ChatChunk): void {
    if (content === null) return;
    const at = performance.now() - this.startedAt;
    const detail = chunk.quicksilver;
    this.content = this.body.diffusing ? content : this.content + content;
    if (detail?.tokens) this.recording.addFrame(at, this.content, detail, detail.tokens);
    else this.recording.addCommitted(at, this.content);
  }

  private takeCall(delta: ToolCallDelta): void {
    const known = this.calls[delta.index];
    if (known) {
      known.function.arguments += delta.function?.arguments ?? "";
      return;
    }
    const { name = "", arguments: text = "" } = delta.function ?? {};
    this.calls[delta.index] = { id: delta.id ?? "", type: "function", function: { name, arguments: text } };
  }

  /** Ends in two tasks, so that a long answer does not hold up the page. */
  private async end(state: RunState): Promise<void> {
    active.delete(this);
    this.elapsedMs = performance.now() - this.startedAt;
    this.content = state === "done" ? this.content : this.recording.committedText;
    await breathe();
    this.recording.finish(this.elapsedMs, this.content);
    await breathe();
    this.state = state;
    this.tell();
  }

  private tell(): void {
    for (const listener of [...this.listeners]) listener();
  }
}
