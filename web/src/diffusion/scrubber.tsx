// The step scrubber: drag or use the arrow keys to see any frame of a finished answer; space plays it.
// Replay keeps the true rhythm of the stream at 1x.

import { useEffect, useRef, useState } from "preact/hooks";
import { HeatStrip } from "./heat_strip";
import type { Recording } from "./recording";
import { Resolve } from "./resolve";

const SPEEDS = [0.1, 0.25, 0.5, 1, 2, 4];

export function Scrubber({ recording, canvasLen }: { recording: Recording; canvasLen: number }) {
  const last = recording.frames.length - 1;
  const [frame, setFrame] = useState(last);
  const [isPlaying, setPlaying] = useState(false);
  const [speed, setSpeed] = useState(0.5);
  useEffect(
    () => (isPlaying ? play(recording, frame >= last ? 0 : frame, speed, setFrame, setPlaying) : undefined),
    [isPlaying, speed],
  );
  const shown = recording.frames[frame];
  const root = useRef<HTMLDivElement>(null);
  useEffect(() => root.current?.scrollIntoView({ block: "nearest" }), []);
  return (
    <div class="scrubber" ref={root}>
      <Resolve recording={recording} frame={frame} canvasLen={canvasLen} label="The answer, token by token" />
      <div class="row">
        <button type="button" class="small" aria-pressed={isPlaying} onClick={() => setPlaying(!isPlaying)}>
          {isPlaying ? "Pause" : "Replay"}
        </button>
        <input
          type="range"
          min={0}
          max={last}
          value={frame}
          aria-label="Denoising step"
          aria-valuetext={shown ? `frame ${frame + 1} of ${last + 1}, forward ${shown.step}` : ""}
          onInput={(event) => {
            setPlaying(false);
            setFrame(Number(event.currentTarget.value));
          }}
          onKeyDown={(event) => {
            if (event.key !== " ") return;
            event.preventDefault();
            setPlaying(!isPlaying);
          }}
        />
        <label class="inline">
          <span class="hidden">Replay speed</span>
          <select value={speed} onChange={(event) => setSpeed(Number(event.currentTarget.value))}>
            {SPEEDS.map((value) => (
              <option value={value}>{value}×</option>
            ))}
          </select>
        </label>
        <output class="mono">
          {frame + 1}/{last + 1} · forward {shown?.step ?? 0} · {((shown?.at ?? 0) / 1000).toFixed(2)} s
        </output>
      </div>
      <HeatStrip recording={recording} frame={frame} />
    </div>
  );
}

/** Steps through the frames as they came; returns what stops it. */
export function play(
  recording: Recording,
  from: number,
  speed: number,
  show: (frame: number) => void,
  setPlaying: (isPlaying: boolean) => void,
): () => void {
  const offset = recording.frames[from]?.at ?? 0;
  const startedAt = performance.now();
  let request = requestAnimationFrame(tick);
  function tick() {
    const at = offset + (performance.now() - startedAt) * speed;
    const index = frameAt(recording, at);
    show(index);
    if (index >= recording.frames.length - 1) setPlaying(false);
    else request = requestAnimationFrame(tick);
  }
  return () => cancelAnimationFrame(request);
}

/** The newest frame that had come by `at` milliseconds. */
export function frameAt(recording: Recording, at: number): number {
  const later = recording.frames.findIndex((frame) => frame.at > at);
  return later < 0 ? recording.frames.length - 1 : Math.max(0, later - 1);
}
