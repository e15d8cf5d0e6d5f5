// The account behind the key that the page calls with: rights, balance, limits, usage and the keys below it.
// Amounts are credits as decimal text; times are unix seconds.

import { getJson, manage } from "./client";

export interface Limits {
  max_requests_per_1_minute: number | null;
  max_input_tokens_per_1_minute: number | null;
  max_output_tokens_per_1_minute: number | null;
  max_requests_in_flight: number | null;
}

export interface ApiKey {
  id: string;
  name: string;
  redacted_value: string;
  created_at: number;
  expires_at: number | null;
  last_used_at: number | null;
  status: "active" | "revoked" | "expired";
  scopes: string[];
  budget: string | null;
  spent: string;
  balance: string | null;
}

export interface NewKey extends ApiKey {
  /** The secret; the server tells it this once. */
  value: string;
}

export interface KeyDraft {
  name: string;
  scopes: string[];
  expires_in_seconds?: number;
  budget?: string;
}

export interface Gauge {
  limit: number;
  remaining: number;
  reset_s: number;
}

export interface Account {
  key: ApiKey;
  project: { id: string; name: string };
  organization: { id: string; name: string };
  scopes: string[];
  balance: string | null;
  rate_limits: { requests: Gauge | null; input_tokens: Gauge | null; output_tokens: Gauge | null };
}

interface Page<T> {
  data: { start_time: number; results: T[] }[];
}

interface UsageLine {
  num_model_requests: number;
  input_tokens: number;
  output_tokens: number;
}

export interface UsageBucket {
  start: number;
  requests: number;
  tokensIn: number;
  tokensOut: number;
  cost: number;
}

export type Width = "1h" | "1d";

export function getAccount(): Promise<Account> {
  return getJson<Account>("/v1/account");
}

export async function listKeys(): Promise<ApiKey[]> {
  return (await getJson<{ data: ApiKey[] }>("/v1/account/keys?limit=100")).data;
}

export function makeKey(draft: KeyDraft): Promise<NewKey> {
  return manage<NewKey>("POST", "/v1/account/keys", draft);
}

export function rotateKey(id: string): Promise<NewKey> {
  return manage<NewKey>("POST", `/v1/account/keys/${encodeURIComponent(id)}/rotate`, {});
}

export async function revokeKey(id: string): Promise<void> {
  await manage("DELETE", `/v1/account/keys/${encodeURIComponent(id)}`);
}

/** The project's usage in `num` buckets from `start` on, empty ones included. */
export async function getUsage(start: number, width: Width, num: number): Promise<UsageBucket[]> {
  const query = `start_time=${start}&bucket_width=${width}&limit=${num}`;
  const [usage, costs] = await Promise.all([
    getJson<Page<UsageLine>>(`/v1/organization/usage/completions?${query}`),
    getJson<Page<{ amount: { value: number } }>>(`/v1/organization/costs?${query}`),
  ]);
  const costAt = new Map(costs.data.map((bucket) => [bucket.start_time, sum(bucket.results, (r) => r.amount.value)]));
  return usage.data.map(({ start_time, results }) => ({
    start: start_time,
    requests: sum(results, (line) => line.num_model_requests),
    tokensIn: sum(results, (line) => line.input_tokens),
    tokensOut: sum(results, (line) => line.output_tokens),
    cost: costAt.get(start_time) ?? 0,
  }));
}

export function sum<T>(items: readonly T[], pick: (item: T) => number): number {
  return items.reduce((total, item) => total + pick(item), 0);
}
