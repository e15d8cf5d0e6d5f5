// What this browser has asked for: one line a request, for the Usage panel. Counts and times, no text.

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

export interface Bucket {
  label: string;
  requests: number;
  tokens: number;
  cost: number;
}

/** Sums over the last `num` spans of `spanMs` that end with the one holding `now`. */
export function bucketed(known: readonly Entry[], now: number, spanMs: number, num: number): Bucket[] {
  const end = Math.floor(now / spanMs) + 1;
  return Array.from({ length: num }, (_, i) => {
    const span = end - num + i;
    const inside = known.filter((entry) => Math.floor(entry.at / spanMs) === span);
    return {
      label: new Date(span * spanMs).toISOString().slice(5, 16).replace("T", " "),
      requests: inside.length,
      tokens: inside.reduce((sum, entry) => sum + entry.promptTokens + entry.completionTokens, 0),
      cost: inside.reduce((sum, entry) => sum + entry.cost, 0),
    };
  });
}
