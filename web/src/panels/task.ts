// The requests of one editor: sent, timed, recorded. A new request cancels the one before it, whose answer would be stale.

import { useEffect, useRef, useState } from "preact/hooks";
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
  /** The reply, or null if the request failed or was cancelled. */
  ask: (path: string, body: Record<string, unknown>) => Promise<T | null>;
  /** Returns whether a request was under way. */
  cancel: () => boolean;
}

export function useTask<T extends { usage: Usage }>(): Task<T> {
  const { model } = useStore(settings);
  const [reply, setReply] = useState<T | null>(null);
  const [ms, setMs] = useState(0);
  const [problem, setProblem] = useState<string | null>(null);
  const [isBusy, setBusy] = useState(false);
  const current = useRef<AbortController | null>(null);
  const cancel = () => {
    const wasBusy = current.current !== null;
    current.current?.abort();
    current.current = null;
    setBusy(false);
    return wasBusy;
  };
  useEffect(() => () => void current.current?.abort(), []);
  const ask = async (path: string, body: Record<string, unknown>) => {
    cancel();
    const abort = new AbortController();
    current.current = abort;
    const startedAt = performance.now();
    setBusy(true);
    setProblem(null);
    try {
      const found = await postJson<T>(path, { model, ...body }, abort.signal);
      if (abort.signal.aborted) return null;
      const took = performance.now() - startedAt;
      setReply(found);
      setMs(took);
      recordTask(path, model, found.usage, took);
      return found;
    } catch (error) {
      if (!abort.signal.aborted) setProblem((error as Error).message);
      return null;
    } finally {
      if (current.current === abort) cancel();
    }
  };
  return { reply, ms, problem, isBusy, ask, cancel };
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
