// Everything the page asks of the server goes through here, and only to the server it came from.
// The API key lives in this module's memory: never in storage, never in a URL, gone with the page.

import { eventData } from "./sse";
import type { About, ChatBody, ChatChunk, ModelEntry } from "./types";
import { Store } from "../store/observable";

export interface Sent {
  path: string;
  body: unknown;
  at: number;
  /** Whether it carried a key. The key itself is not kept. */
  hadKey: boolean;
}

/** The newest request of the page, exactly as sent; the API panel prints it. */
export const lastSent = new Store<Sent | null>(null);

/** True once the server asked for a key that we do not have. */
export const keyWanted = new Store(false);

let key = "";

export function holdKey(text: string): void {
  key = text.trim();
}

export function hasKey(): boolean {
  return key !== "";
}

export class ApiError extends Error {
  constructor(
    message: string,
    readonly status: number,
    readonly param: string | null = null,
  ) {
    super(message);
  }
}

export async function getJson<T>(path: string): Promise<T> {
  const response = await fetch(path, { headers: headers() });
  await check(response);
  return (await response.json()) as T;
}

export async function getText(path: string): Promise<string> {
  const response = await fetch(path, { headers: headers() });
  await check(response);
  return response.text();
}

export async function postJson<T>(path: string, body: unknown, signal?: AbortSignal): Promise<T> {
  const response = await post(path, body, signal);
  return (await response.json()) as T;
}

/** A call about the account, not a request of the user's: it is not recorded as one. */
export async function manage<T>(method: "POST" | "DELETE", path: string, body?: unknown): Promise<T> {
  const init: RequestInit = { method, headers: { ...headers(), "content-type": "application/json" } };
  const response = await fetch(path, body === undefined ? init : { ...init, body: JSON.stringify(body) });
  await check(response);
  return (await response.json()) as T;
}

/** Sends a file with form fields. */
export async function upload<T>(path: string, file: File, fields: Record<string, string>): Promise<T> {
  const body = new FormData();
  for (const [name, value] of Object.entries(fields)) body.append(name, value);
  body.append("file", file);
  const response = await fetch(path, { method: "POST", headers: headers(), body });
  await check(response);
  return (await response.json()) as T;
}

export async function* streamChat(body: ChatBody, signal: AbortSignal): AsyncGenerator<ChatChunk> {
  const response = await post("/v1/chat/completions", body, signal);
  if (response.body === null) throw new ApiError("The server sent no body.", response.status);
  for await (const data of eventData(response.body)) {
    const chunk = JSON.parse(data) as ChatChunk;
    if (chunk.error) throw new ApiError(chunk.error.message, 200);
    yield chunk;
  }
}

export async function listModels(): Promise<ModelEntry[]> {
  return (await getJson<{ data: ModelEntry[] }>("/v1/chat/completions/models")).data;
}

export function about(): Promise<About> {
  return getJson<About>("/playground/about");
}

/** Reports something; not a request of the user's, so it is not recorded as one, and it may fail in silence. */
export async function tell(path: string, body: unknown): Promise<void> {
  await send(path, body).catch(() => undefined);
}

/** Counts without being recorded as a request of the user's. */
export async function countTokens(model: string, prompt: string, signal: AbortSignal): Promise<number> {
  const response = await send("/v1/tokenize", { model, prompt }, signal);
  return ((await response.json()) as { count: number }).count;
}

async function post(path: string, body: unknown, signal?: AbortSignal): Promise<Response> {
  lastSent.set({ path, body, at: Date.now(), hadKey: hasKey() });
  return send(path, body, signal);
}

async function send(path: string, body: unknown, signal?: AbortSignal): Promise<Response> {
  const init: RequestInit = {
    method: "POST",
    headers: { ...headers(), "content-type": "application/json" },
    body: JSON.stringify(body),
  };
  const response = await fetch(path, signal ? { ...init, signal } : init);
  await check(response);
  return response;
}

function headers(): Record<string, string> {
  return key === "" ? {} : { authorization: `Bearer ${key}` };
}

async function check(response: Response): Promise<void> {
  if (response.ok) return;
  if (response.status === 401) keyWanted.set(true);
  const text = await response.text();
  throw readError(text, response.status);
}

function readError(text: string, status: number): ApiError {
  try {
    const { error } = JSON.parse(text) as { error: { message: string; param: string | null } };
    return new ApiError(error.message, status, error.param);
  } catch {
    return new ApiError(`The server answered ${status}.`, status);
  }
}
