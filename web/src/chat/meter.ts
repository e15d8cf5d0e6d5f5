// The figures under an answer: speed, tokens per forward, cost. Exact once usage has come, counted from cells before.

import type { ModelEntry, Usage } from "../wire/types";
import type { Run } from "./run";

export interface Reading {
  tokens: number;
  seconds: number;
  tokensPerS: number;
  forwards: number;
  tokensPerForward: number;
}

export function readMeter(run: Run): Reading {
  const tokens = run.usage?.completion_tokens ?? run.recording.cells.length;
  const forwards = run.usage?.quicksilver?.forwards ?? run.recording.last?.step ?? 0;
  const seconds = run.elapsed / 1000;
  return {
    tokens,
    seconds,
    forwards,
    tokensPerS: seconds > 0 ? tokens / seconds : 0,
    tokensPerForward: forwards > 0 ? tokens / forwards : 0,
  };
}

/** In the currency of the price list; null when the model is free. */
export function cost(usage: Usage, model: ModelEntry | undefined): number | null {
  if (!model) return null;
  const fresh = usage.prompt_tokens - usage.cached_input_tokens;
  const { prompt, completion, input_cache_reads: cached } = model.pricing;
  const sum =
    fresh * Number(prompt) + usage.cached_input_tokens * Number(cached) + usage.completion_tokens * Number(completion);
  return sum > 0 ? sum : null;
}

export function formatReading(reading: Reading): string {
  const parts = [
    `${reading.tokens} tokens`,
    `${reading.seconds.toFixed(2)} s`,
    `${reading.tokensPerS.toFixed(0)} tok/s`,
  ];
  if (reading.forwards > 0) {
    parts.push(`${reading.forwards} forwards`, `${reading.tokensPerForward.toFixed(2)} tokens/forward`);
  }
  return parts.join(" · ");
}
