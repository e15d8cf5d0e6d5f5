// What the server says of itself: its models, and whether it keeps accounts. Asked once at the start, and again when a
// key is given.

import { about, keyWanted, listModels } from "../wire/client";
import type { About, ModelEntry } from "../wire/types";
import { Store } from "./observable";
import { change, settings } from "./settings";

export const models = new Store<ModelEntry[]>([]);
export const server = new Store<About | null>(null);
export const trouble = new Store<string | null>(null);

export async function meetServer(): Promise<void> {
  try {
    server.set(await about());
    const found = await listModels();
    models.set(found);
    keyWanted.set(false);
    trouble.set(null);
    if (!found.some((model) => model.id === settings.get().model)) change({ model: found[0]?.id ?? "" });
  } catch (error) {
    trouble.set((error as Error).message);
  }
}

export function currentModel(): ModelEntry | undefined {
  return models.get().find((model) => model.id === settings.get().model);
}
