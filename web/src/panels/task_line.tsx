// What became of a code request: its figures, or the reason it failed.

import type { Usage } from "../wire/types";
import type { Task } from "./task";

export function TaskLine<T extends { usage: Usage }>({ task }: { task: Task<T> }) {
  if (task.problem) {
    return (
      <p class="trouble" role="alert">
        {task.problem}
      </p>
    );
  }
  if (!task.reply) return null;
  const { completion_tokens: tokens, quicksilver } = task.reply.usage;
  return (
    <p class="meter mono" role="status">
      {tokens} tokens · {task.ms.toFixed(0)} ms · {quicksilver?.forwards ?? 0} forwards
    </p>
  );
}
