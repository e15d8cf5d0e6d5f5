// The answer while it is being made: cells under `diffusing`, else markdown that grows; live figures either way.

import type { RefObject } from "preact";
import { useEffect, useLayoutEffect, useMemo, useState } from "preact/hooks";
import { oncePerFrame, Resolve } from "../diffusion/resolve";
import { Markdown } from "../markdown/render";
import { formatReading, readMeter } from "./meter";
import type { Run } from "./run";

const METER_MS = 100;
const NEAR_END_PX = 120;

export function Answering({ run, scroller }: { run: Run; scroller: RefObject<HTMLElement | null> }) {
  useFollow(run, scroller);
  const listen = useMemo(() => (listener: () => void) => run.listen(listener), [run]);
  const canvasLen = run.body.decoder?.canvas_len ?? 0;
  return (
    <article class="message assistant" aria-label="Answer in the making" aria-busy="true">
      <Thinking run={run} />
      {run.body.diffusing ? (
        <Resolve recording={run.recording} frame={-1} canvasLen={canvasLen} listen={listen} label="Answer resolving" />
      ) : (
        <Growing run={run} />
      )}
      <Meter run={run} />
    </article>
  );
}

function Growing({ run }: { run: Run }) {
  useRedraw(run);
  return run.content ? <Markdown text={run.content} /> : <p class="faint">…</p>;
}

function Thinking({ run }: { run: Run }) {
  useRedraw(run);
  return run.reasoning ? (
    <details class="reasoning" open>
      <summary>Thinking</summary>
      <p>{run.reasoning}</p>
    </details>
  ) : null;
}

/** Live figures; hidden from screen readers, which get them once at the end. */
export function Meter({ run }: { run: Run }) {
  const [, tick] = useState(0);
  useEffect(() => {
    const timer = setInterval(() => tick((n) => n + 1), METER_MS);
    return () => clearInterval(timer);
  }, [run]);
  return (
    <p class="meter mono" aria-hidden="true">
      {formatReading(readMeter(run))}
    </p>
  );
}

/** Listens from the first drawing on: a short run can be over before an effect that waits for a frame. */
export function useRedraw(run: Run): void {
  const [, draw] = useState(0);
  useLayoutEffect(() => run.listen(oncePerFrame(() => draw((n) => n + 1))), [run]);
}

/** Keeps the end in view while the reader is near it, and leaves a reader who scrolled up alone. */
function useFollow(run: Run, scroller: RefObject<HTMLElement | null>): void {
  useEffect(
    () =>
      run.listen(
        oncePerFrame(() => {
          const element = scroller.current;
          if (!element) return;
          const distance = element.scrollHeight - element.scrollTop - element.clientHeight;
          if (distance < NEAR_END_PX) element.scrollTop = element.scrollHeight;
        }),
      ),
    [run, scroller],
  );
}
