// A denoising as it came over the wire, frame by frame, and the cells that its text is made of.
//
// A snapshot of the API is committed text and, behind it, the canvas as it stands. The API names every committed token
// once, so one list of cells serves every frame; a frame keeps where its committed text ends and what stood behind.

import type { Alternative, FrameDetail, FrameToken } from "../wire/types";

export interface Cell {
  text: string;
  /** Offset in the answer, in UTF-16 units. */
  start: number;
  confidence: number | null;
  /** The forward from which the text stood as it is. */
  step: number;
  committedAt: number;
  isForced: boolean;
  top: Alternative[];
}

export interface Frame {
  /** Milliseconds since the request was sent. */
  at: number;
  step: number;
  /** Where the text of the canvas begins. */
  committed: number;
  /** The text of the canvas. */
  tail: string;
  tokens: FrameToken[];
  /** Leading tokens that belong to the text; those behind stand after an end or in another channel. */
  numShown: number;
}

export class Recording {
  readonly frames: Frame[] = [];
  cells: Cell[] = [];
  /** Grows when cells were cut anew, so that views know to start over. */
  version = 0;
  isFinal = false;
  /** The whole text of the last frame. */
  content = "";
  private numCodePoints = 0;
  /** Leading cells that are tokens of the API's; those behind were cut at words for want of better. */
  private numSettled = 0;
  private decidedAt: number[] = [];

  /** A snapshot with its tokens. Frames come in order. */
  addFrame(at: number, content: string, detail: FrameDetail, tokens: readonly FrameToken[]): void {
    const canvas = tokens.filter(isOnCanvas);
    const numShown = detail.shown ?? canvas.length;
    const tail = canvas
      .slice(0, numShown)
      .map(([text]) => text)
      .join("");
    this.numCodePoints = detail.committed;
    const frame = { at, step: detail.step, committed: content.length - tail.length, tail, tokens: canvas, numShown };
    this.push(
      frame,
      content,
      tokens.filter((token) => !isOnCanvas(token)),
    );
  }

  /** Committed text alone: all of it is there to stay. */
  addCommitted(at: number, content: string): void {
    const last = this.frames.at(-1);
    this.numCodePoints = content.length;
    if (last && last.committed === content.length && last.tokens.length === 0) return;
    const step = last?.step ?? 0;
    this.push({ at, step, committed: content.length, tail: "", tokens: [], numShown: 0 }, content, []);
    this.numSettled = this.cells.length;
  }

  /** The last frame is the answer and nothing else. */
  finish(at: number, content: string): void {
    this.addCommitted(at, content);
    this.isFinal = true;
    const last = this.cells.at(-1);
    if (last && last.start + last.text.length > content.length) this.cut(content);
  }

  get last(): Frame | undefined {
    return this.frames.at(-1);
  }

  /** What stays of the answer if it ends here. */
  get committedText(): string {
    if (this.numCodePoints >= this.content.length) return this.content;
    return Array.from(this.content).slice(0, this.numCodePoints).join("");
  }

  /** The whole text of a frame, as the API sent it. */
  contentAt(index: number): string {
    const frame = this.frames[index];
    return frame ? this.content.slice(0, frame.committed) + frame.tail : "";
  }

  private push(frame: Frame, content: string, settled: FrameToken[]): void {
    const last = this.frames.at(-1);
    this.content = content;
    this.settle(settled, frame, last);
    this.coverByWords(frame);
    this.decidedAt = decisionSteps(frame, last, this.decidedAt);
    this.frames.push(frame);
  }

  private settle(tokens: readonly FrameToken[], frame: Frame, last: Frame | undefined): void {
    if (tokens.length === 0) return;
    if (this.cells.length > this.numSettled) {
      this.cells.length = this.numSettled;
      this.version += 1;
    }
    for (const [i, [text, state, confidence, top]] of tokens.entries()) {
      const start = this.end;
      if (text === "" || !this.content.startsWith(text, start)) continue;
      const draft = last?.tokens[i]?.[0] === text ? last.tokens[i] : undefined;
      const step = draft ? (this.decidedAt[i] ?? frame.step) : frame.step;
      const isForced = state === "forced";
      const sureness = confidence ?? draft?.[2] ?? null;
      this.cells.push({ text, start, confidence: sureness, step, committedAt: frame.step, isForced, top: top ?? [] });
    }
    this.numSettled = this.cells.length;
  }

  /** Committed text that no token was named for: a plain stream, or text that was held back. */
  private coverByWords(frame: Frame): void {
    const words = this.content.slice(this.end, frame.committed).match(/\s*\S+|\s+$/gu) ?? [];
    for (const text of words) {
      const { end: start } = this;
      const { step } = frame;
      this.cells.push({ text, start, confidence: null, step, committedAt: step, isForced: false, top: [] });
    }
  }

  private get end(): number {
    const last = this.cells.at(-1);
    return last ? last.start + last.text.length : 0;
  }

  /** Leaves out what stands behind the text, as where the user stopped it. */
  private cut(content: string): void {
    const kept = this.cells.filter((cell) => cell.start < content.length);
    this.cells = kept.map((cell) => ({ ...cell, text: content.slice(cell.start, cell.start + cell.text.length) }));
    this.version += 1;
  }
}

function isOnCanvas([, state]: FrameToken): boolean {
  return state === "masked" || state === "decided";
}

/** How many cells start before `offset`. */
export function numCellsBefore(cells: readonly Cell[], offset: number): number {
  let low = 0;
  let high = cells.length;
  while (low < high) {
    const middle = (low + high) >> 1;
    if ((cells[middle]?.start ?? Infinity) < offset) low = middle + 1;
    else high = middle;
  }
  return low;
}

/** Per canvas position the forward since which its guess stands. */
function decisionSteps(frame: Frame, last: Frame | undefined, before: number[]): number[] {
  const isSameCanvas = last !== undefined && last.committed === frame.committed;
  return frame.tokens.map(([text, state], i) => {
    const old = isSameCanvas ? last.tokens[i] : undefined;
    const stood = old !== undefined && old[0] === text && old[1] === state;
    return stood ? (before[i] ?? frame.step) : frame.step;
  });
}
