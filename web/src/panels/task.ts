// One request of the code panel: sent, timed, recorded; what it said or why it failed.

import { useState } from "preact/hooks";
import { record } from "../store/ledger";
import { useStore } from "../store/observable";
import { currentModel } from "../store/server";
import { settings } from "../store/settings";
import { cost } from "../chat/meter";
import { postJson } from "../wire/client";
import type { Usage } from "../wire/types";

export interface Task<T> {
  reply: T | null;
  ms: number;
  problem: string | null;
  isBusy: boolean;
  ask: (body: Record<string, unknown>) => Promise<T | null>;
  clear: () => void;
}

export function useTask<T extends { usage: Usage }>(path: string): Task<T> {
  const { model } = useStore(settings);
  const [reply, setReply] = useState<T | null>(null);
  const [ms, setMs] = useState(0);
  const [problem, setProblem] = useState<string | null>(null);
  const [isBusy, setBusy] = useState(false);
  const ask = async (body: Record<string, unknown>) => {
    const startedAt = performance.now();
    setBusy(true);
    setProblem(null);
    try {
      const found = await postJson<T>(path, { model, ...body });
      const took = performance.now() - startedAt;
      setReply(found);
      setMs(took);
      recordTask(path, model, found.usage, took);
      return found;
    } catch (error) {
      setProblem((error as Error).message);
      return null;
    } finally {
      setBusy(false);
    }
  };
  return { reply, ms, problem, isBusy, ask, clear: () => setReply(null) };
}

function recordTask(path: string, model: string, usage: Usage, ms: number): void {
  record({
    at: Date.now(),
    kind: path.split("/")[2] ?? path,
    model,
    promptTokens: usage.prompt_tokens,
    completionTokens: usage.completion_tokens,
    forwards: usage.quicksilver?.forwards ?? 0,
    seconds: ms / 1000,
    cost: cost(usage, currentModel()) ?? 0,
  });
}
