// Facts about the server: its models, whether it has accounts, and the account of the page's key. Fetched at the start and
// again when a key is entered.

import { getAccount, type Account } from "../wire/account";
import { about, hasKey, keyWanted, listModels } from "../wire/client";
import type { About, ModelEntry } from "../wire/types";
import { Store } from "./observable";
import { change, settings } from "./settings";

export const models = new Store<ModelEntry[]>([]);
export const server = new Store<About | null>(null);
export const account = new Store<Account | null>(null);
export const trouble = new Store<string | null>(null);

export async function meetServer(): Promise<void> {
  try {
    const info = await about();
    server.set(info);
    account.set(null);
    const found = await listModels();
    models.set(found);
    const chosen = found.find((model) => model.id === settings.get().model) ?? found[0];
    change({ model: chosen?.quicksilver.model ?? "" });
    keyWanted.set(false);
    if (info.accounts && hasKey()) account.set(await getAccount());
    trouble.set(null);
  } catch (error) {
    trouble.set((error as Error).message);
  }
}

/** One entry per model: aliases are other names of the same model. */
export function servedModels(known: readonly ModelEntry[]): ModelEntry[] {
  return known.filter((model) => model.id === model.quicksilver.model);
}

export function aliasesOf(known: readonly ModelEntry[], id: string): string[] {
  return known.filter((model) => model.quicksilver.model === id && model.id !== id).map((model) => model.id);
}

/** Balance and limits as they are now; the page goes on if they cannot be had. */
export async function refreshAccount(): Promise<void> {
  if (account.get()) account.set(await getAccount().catch(() => account.get()));
}

export function currentModel(): ModelEntry | undefined {
  return models.get().find((model) => model.id === settings.get().model);
}
