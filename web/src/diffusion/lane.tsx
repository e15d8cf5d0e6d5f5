// One answer with its clock and counts, while it is made and afterwards; lanes stand side by side.

import { useEffect, useMemo, useState } from "preact/hooks";
import { useRedraw } from "../chat/answering";
import { formatReading, readMeter } from "../chat/meter";
import type { Run } from "../chat/run";
import { numCellsBefore } from "./recording";
import { Resolve } from "./resolve";
import { frameAt } from "./scrubber";

const CLOCK_MS = 100;

interface LaneProps {
  title: string;
  run: Run;
  /** Milliseconds since the start of a replay; null shows the answer as it is. */
  clock: number | null;
}

export function Lane({ title, run, clock }: LaneProps) {
  useRedraw(run);
  useTick(run);
  const listen = useMemo(() => (listener: () => void) => run.listen(listener), [run]);
  const frame = clock === null ? -1 : frameAt(run.recording, clock);
  const shown = run.recording.frames.at(frame);
  const shownMs = clock === null ? run.elapsed : Math.min(clock, run.elapsedMs);
  const numTokens = numCellsBefore(run.recording.cells, shown?.committed ?? 0);
  const isWaiting = run.state === "waiting" && run.elapsed === 0;
  const isHome = run.isOver && shownMs >= run.elapsedMs;
  return (
    <section class={isHome ? "lane home" : "lane"} aria-label={title}>
      <header>
        <h2>{title}</h2>
        <p class="clock mono" role="timer">
          {(shownMs / 1000).toFixed(2)} s
        </p>
      </header>
      <progress value={numTokens} max={run.isOver ? run.recording.cells.length : maxTokens(run)} aria-hidden="true" />
      <p class="counts">
        <strong>{forwardsShown(run, shown?.step ?? 0, isHome)}</strong> forwards <strong>{numTokens}</strong> tokens
      </p>
      {isWaiting ? (
        <p class="faint">waits for its turn</p>
      ) : (
        <Resolve
          recording={run.recording}
          frame={frame}
          canvasLen={run.body.decoder?.canvas_len ?? 1}
          listen={listen}
          label={`${title} answer`}
        />
      )}
      {run.isOver && <p class="meter mono">{formatReading(readMeter(run))}</p>}
      {run.error && <p class="trouble">{run.error}</p>}
    </section>
  );
}

/** A complete answer shows the count of the usage: it includes the forward that found the end and shows no frame. */
export function forwardsShown(run: Run, step: number, isComplete: boolean): number {
  return isComplete ? readMeter(run).forwards : step;
}

function maxTokens(run: Run): number {
  return run.body.max_tokens ?? 1;
}

/** The clock goes on while nothing arrives. */
function useTick(run: Run): void {
  const [, tick] = useState(0);
  useEffect(() => {
    const timer = setInterval(() => run.isOver || tick((n) => n + 1), CLOCK_MS);
    return () => clearInterval(timer);
  }, [run]);
}
