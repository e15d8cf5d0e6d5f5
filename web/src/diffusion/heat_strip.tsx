// The whole denoising in one picture: a row a frame, a column a position in the answer, colour for confidence.
// Left-to-right decoding draws a staircase, free order draws clouds.

import { useEffect, useRef } from "preact/hooks";
import { stateOf } from "./canvas_view";
import { numCellsBefore, type Frame, type Recording } from "./recording";

const HEIGHT = 72;
const VIRIDIS = [
  "#440154",
  "#482878",
  "#3e4a89",
  "#31688e",
  "#26828e",
  "#1f9e89",
  "#35b779",
  "#6ece58",
  "#b5de2b",
  "#fde725",
];

export function HeatStrip({ recording, frame }: { recording: Recording; frame: number }) {
  const host = useRef<HTMLCanvasElement>(null);
  useEffect(() => {
    if (host.current) paint(host.current, recording, frame);
  }, [recording, frame, recording.version]);
  return (
    <canvas
      ref={host}
      class="heat"
      height={HEIGHT}
      role="img"
      aria-label={`Confidence by step and position: ${recording.frames.length} frames, ${recording.cells.length} tokens`}
    />
  );
}

function paint(canvas: HTMLCanvasElement, recording: Recording, current: number): void {
  canvas.width = canvas.clientWidth || 600;
  const context = canvas.getContext("2d");
  const numFrames = recording.frames.length;
  if (!context || numFrames === 0) return;
  const numColumns = Math.max(
    1,
    ...recording.frames.map((frame) => numCellsBefore(recording.cells, frame.committed) + frame.tokens.length),
  );
  const width = canvas.width / numColumns;
  const stride = Math.max(1, Math.ceil(numFrames / HEIGHT));
  const height = (HEIGHT / numFrames) * stride;
  for (let i = 0; i < numFrames; i += stride) {
    const frame = recording.frames[i];
    if (frame) paintRow(context, recording, frame, { top: (i * HEIGHT) / numFrames, width, height });
  }
  context.strokeStyle = "#ff5c8a";
  context.strokeRect(0.5, (current * HEIGHT) / numFrames + 0.5, canvas.width - 1, Math.max(1, height - 1));
}

interface Place {
  top: number;
  width: number;
  height: number;
}

function paintRow(
  context: CanvasRenderingContext2D,
  recording: Recording,
  frame: Frame,
  { top, width, height }: Place,
): void {
  const numCommitted = numCellsBefore(recording.cells, frame.committed);
  context.fillStyle = "#8a94a633";
  context.fillRect(0, top, numCommitted * width, height);
  for (const [i, token] of frame.tokens.entries()) {
    context.fillStyle =
      stateOf(token) === "masked" ? "#8a94a622" : (VIRIDIS[Math.min(9, Math.floor((token[2] ?? 0) * 10))] ?? "#000");
    context.fillRect((numCommitted + i) * width, top, Math.max(1, width - 0.5), height);
  }
}
