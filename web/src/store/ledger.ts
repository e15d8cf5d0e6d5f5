// What this browser has asked for: one line a request, for the Usage panel. Counts and times, no text.

import { sum, type UsageBucket } from "../wire/account";
import { all, clear, put } from "./database";
import { newId } from "./identity";
import { Store } from "./observable";

export interface Entry {
  at: number;
  kind: string;
  model: string;
  promptTokens: number;
  completionTokens: number;
  forwards: number;
  seconds: number;
  cost: number;
}

export const entries = new Store<Entry[]>([]);

export async function loadEntries(): Promise<void> {
  const found = await all<Entry>("requests");
  entries.set(found.sort((a, b) => a.at - b.at));
}

export function record(entry: Entry): void {
  entries.update((known) => [...known, entry]);
  void put("requests", newId(), entry);
}

export async function forgetEntries(): Promise<void> {
  await clear("requests");
  entries.set([]);
}

/** Sums over the last `num` spans of `spanMs` that end with the one holding `now`. */
export function bucketed(known: readonly Entry[], now: number, spanMs: number, num: number): UsageBucket[] {
  const end = Math.floor(now / spanMs) + 1;
  return Array.from({ length: num }, (_, i) => {
    const span = end - num + i;
    const inside = known.filter((entry) => Math.floor(entry.at / spanMs) === span);
    return {
      start: (span * spanMs) / 1000,
      requests: inside.length,
      tokensIn: sum(inside, (entry) => entry.promptTokens),
      tokensOut: sum(inside, (entry) => entry.completionTokens),
      cost: sum(inside, (entry) => entry.cost),
    };
  });
}
