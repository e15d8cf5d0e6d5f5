// The view of a run follows it to its end, however short it is; runs in turn end together when one is stopped.

import { render } from "preact";
import { expect, test, vi } from "vitest";
import { useRedraw } from "../src/chat/answering";
import { Run, startInTurn } from "../src/chat/run";

const BODY = { model: "nano", messages: [{ role: "user" as const, content: "hello" }], stream: true as const };

const SLOW_FRAME_MS = 200;

function Probe({ run }: { run: Run }) {
  useRedraw(run);
  return <p>{run.state}</p>;
}

test("a run that ends before the first frame is drawn as ended", async () => {
  vi.stubGlobal("fetch", async () => new Response("data: [DONE]\n\n"));
  vi.stubGlobal("requestAnimationFrame", (draw: () => void) => setTimeout(draw, SLOW_FRAME_MS));
  const host = document.createElement("div");
  const run = new Run(BODY);
  render(<Probe run={run} />, host);
  await run.start();
  await vi.waitFor(() => expect(host.textContent).toBe("done"), { timeout: 5000 });
});

test("the runs after a stopped one are stopped, and none is left waiting", async () => {
  vi.stubGlobal("fetch", async (_: string, { signal }: RequestInit) => {
    signal?.throwIfAborted();
    return new Promise((_resolve, reject) => signal?.addEventListener("abort", () => reject(new Error("aborted"))));
  });
  const runs = [new Run(BODY), new Run(BODY), new Run(BODY)];
  const ended: Run[] = [];
  const all = startInTurn(runs, (run) => ended.push(run));
  runs[0]?.stop();
  await all;
  expect(ended).toEqual(runs);
  expect(runs.map(({ state }) => state)).toEqual(["stopped", "stopped", "stopped"]);
});
