// Presets of the system prompt: a few that come with the page, and the user's own, kept in this browser.

import { get, put } from "./database";
import { Store } from "./observable";

export interface Preset {
  name: string;
  system: string;
}

export const BUILT_IN: readonly Preset[] = [
  { name: "None", system: "" },
  { name: "Brief", system: "Answer in at most three sentences." },
  { name: "Code only", system: "Answer with code only, in one fenced block, without explanation." },
  { name: "Reviewer", system: "You review code. List faults first, by severity, each with the line and a fix." },
  { name: "Translator", system: "Translate what the user writes into English. Answer with the translation only." },
];

export const ownPresets = new Store<readonly Preset[]>([]);

export async function loadPresets(): Promise<void> {
  ownPresets.set((await get<Preset[]>("settings", "presets")) ?? []);
}

/** A preset of the same name is replaced. */
export function savePreset(preset: Preset): void {
  keep([...ownPresets.get().filter(({ name }) => name !== preset.name), preset]);
}

export function deletePreset(name: string): void {
  keep(ownPresets.get().filter((preset) => preset.name !== name));
}

function keep(presets: readonly Preset[]): void {
  ownPresets.set(presets);
  void put("settings", "presets", presets);
}
