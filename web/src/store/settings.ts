// How the user likes it: model, effort, decoder and the rest, kept in this browser.

import type { ChatBody, DecoderName, Effort } from "../wire/types";
import { get, put } from "./database";
import { Store } from "./observable";

export interface Settings {
  model: string;
  effort: Effort | "";
  temperature: number;
  seed: string;
  maxTokens: number;
  decoder: DecoderName;
  canvasLen: number;
  showsDiffusion: boolean;
  theme: "auto" | "light" | "dark";
}

const DEFAULTS: Settings = {
  model: "",
  effort: "",
  temperature: 0,
  seed: "",
  maxTokens: 512,
  decoder: "verify",
  canvasLen: 16,
  showsDiffusion: true,
  theme: "auto",
};
const NUM_ALTERNATIVES = 5;

export const settings = new Store<Settings>(DEFAULTS);

export async function loadSettings(): Promise<void> {
  settings.set({ ...DEFAULTS, ...(await get<Partial<Settings>>("settings", "page")) });
}

export function change(part: Partial<Settings>): void {
  settings.update((value) => ({ ...value, ...part }));
  void put("settings", "page", settings.get());
}

/** The fields of a chat request that come from settings. */
export function chatFields(from: Settings): Omit<ChatBody, "messages"> {
  const body: Omit<ChatBody, "messages"> = {
    model: from.model,
    temperature: from.temperature,
    max_tokens: from.maxTokens,
    decoder: { name: from.decoder, canvas_len: from.canvasLen },
    stream: true,
    stream_options: { include_usage: true },
  };
  if (from.effort) body.reasoning_effort = from.effort;
  if (from.seed.trim() !== "") body.seed = Number(from.seed);
  return from.showsDiffusion ? { ...body, ...diffusionFields() } : body;
}

/** Snapshots with every token, and alternatives to each at the end. */
export function diffusionFields(): Pick<ChatBody, "diffusing" | "diffusion_detail" | "logprobs" | "top_logprobs"> {
  return { diffusing: true, diffusion_detail: "tokens", logprobs: true, top_logprobs: NUM_ALTERNATIVES };
}
