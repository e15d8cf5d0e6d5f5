// What the server says of itself: its models, whether it keeps accounts, and then whose key the page calls with. Asked
// once at the start, and again when a key is given.

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
    keyWanted.set(false);
    if (info.accounts && hasKey()) account.set(await getAccount());
    trouble.set(null);
    if (!found.some((model) => model.id === settings.get().model)) change({ model: found[0]?.id ?? "" });
  } catch (error) {
    trouble.set((error as Error).message);
  }
}

/** Balance and limits as they are now; the page goes on if they cannot be had. */
export async function refreshAccount(): Promise<void> {
  if (account.get()) account.set(await getAccount().catch(() => account.get()));
}

export function currentModel(): ModelEntry | undefined {
  return models.get().find((model) => model.id === settings.get().model);
}
