// The result of a code request: its latency, rounds and forwards, or the reason it failed.

import type { ComponentChildren } from "preact";
import type { Usage } from "../wire/types";
import type { Task } from "./task";

interface Props<T> {
  task: Task<T>;
  children?: ComponentChildren;
}

export function TaskLine<T extends { usage: Usage; warning?: string | null }>({ task, children }: Props<T>) {
  if (task.problem) {
    return (
      <p class="trouble" role="alert">
        {task.problem}
      </p>
    );
  }
  return (
    <>
      {task.reply?.warning && <p class="trouble">{task.reply.warning}</p>}
      <p class="meter mono" role="status">
        {task.isBusy ? "Asking…" : task.reply && figures(task.reply.usage, task.ms)}{" "}
        {!task.isBusy && children}
      </p>
    </>
  );
}

function figures({ completion_tokens: tokens, quicksilver }: Usage, ms: number): string {
  const rounds = quicksilver?.rounds ?? 0;
  const forwards = quicksilver?.forwards ?? 0;
  return `${ms.toFixed(0)} ms · ${tokens} tokens · ${rounds} rounds · ${forwards} forwards`;
}
