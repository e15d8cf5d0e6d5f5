// A denoising as it came over the wire, frame by frame, and the cells that its text is made of.
//
// A snapshot of the API is committed text and, behind it, the canvas as it stands. Committed text only grows, so one
// list of committed cells serves every frame; a frame keeps where its committed text ends and what stood behind.

import type { FrameToken, NamedLogprob, TokenLogprob } from "../wire/types";
import { previewLength } from "./preview";

export interface Cell {
  text: string;
  /** Offset in the answer, in UTF-16 units. */
  start: number;
  confidence: number | null;
  /** The forward after which the text stood as it is. */
  step: number | null;
  isForced: boolean;
  top: NamedLogprob[];
}

export interface Frame {
  /** Milliseconds since the request was sent. */
  at: number;
  step: number;
  /** Length of the committed text. */
  committed: number;
  /** The text of the canvas behind it. */
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
  /** Committed so far. */
  text = "";
  private decidedAt: number[] = [];

  /** A snapshot with its canvas. Frames come in order. */
  addFrame(at: number, step: number, content: string, tokens: FrameToken[]): void {
    const last = this.frames.at(-1);
    const { numShown, length } = previewLength(content, tokens, last?.committed ?? 0);
    const committed = content.length - length;
    this.push({ at, step, committed, tail: content.slice(committed), tokens, numShown }, content);
  }

  /** Committed text alone: all of it is there to stay. */
  addCommitted(at: number, content: string): void {
    const last = this.frames.at(-1);
    if (last && last.committed === content.length && last.tokens.length === 0) return;
    const step = last?.step ?? 0;
    this.push({ at, step, committed: content.length, tail: "", tokens: [], numShown: 0 }, content);
  }

  /** The last frame is the answer and nothing else. */
  finish(at: number, content: string, logprobs: TokenLogprob[]): void {
    this.addCommitted(at, content);
    this.isFinal = true;
    const cells = cellsOf(content, logprobs);
    if (cells === null) return;
    this.cells = cells.map((cell) => ({ ...cell, ...this.historyOf(cell) }));
    this.version += 1;
  }

  get last(): Frame | undefined {
    return this.frames.at(-1);
  }

  /** The whole text of a frame, as the API sent it. */
  contentAt(index: number): string {
    const frame = this.frames[index];
    return frame ? this.text.slice(0, frame.committed) + frame.tail : "";
  }

  private push(frame: Frame, content: string): void {
    const last = this.frames.at(-1);
    this.text = content.slice(0, frame.committed);
    this.commit(frame, last);
    this.decidedAt = decisionSteps(frame, last, this.decidedAt);
    this.frames.push(frame);
  }

  /** Newly committed text becomes cells, cut as the last canvas had it and otherwise at words. */
  private commit(frame: Frame, last: Frame | undefined): void {
    let start = last?.committed ?? 0;
    const drafts = last?.tokens.slice(0, last.numShown) ?? [];
    for (const [i, [text, , confidence]] of drafts.entries()) {
      if (text === "" || start + text.length > frame.committed || !this.text.startsWith(text, start)) break;
      this.cells.push({ text, start, confidence, step: this.decidedAt[i] ?? frame.step, isForced: false, top: [] });
      start += text.length;
    }
    for (const text of this.text.slice(start).match(/\s*\S+|\s+$/gu) ?? []) {
      this.cells.push({ text, start, confidence: null, step: frame.step, isForced: false, top: [] });
      start += text.length;
    }
  }

  private historyOf(cell: Cell): Partial<Cell> {
    const known = cellAt(this.cells, cell.start);
    if (known === undefined) return {};
    return {
      step: known.step,
      confidence: known.text === cell.text ? (known.confidence ?? cell.confidence) : cell.confidence,
    };
  }
}

/** The cell that covers an offset. */
export function cellAt(cells: readonly Cell[], offset: number): Cell | undefined {
  const index = numCellsBefore(cells, offset + 1) - 1;
  return cells[index];
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

/** Per canvas position the forward in which it was decided; a guess that is still open has none. */
function decisionSteps(frame: Frame, last: Frame | undefined, before: number[]): number[] {
  const isSameCanvas = last !== undefined && last.committed === frame.committed;
  return frame.tokens.map(([text, state], i) => {
    const old = isSameCanvas ? last.tokens[i] : undefined;
    const stood = old !== undefined && old[0] === text && old[1] === state;
    return stood ? (before[i] ?? frame.step) : frame.step;
  });
}

/** Cells from the server's own list of tokens, or null when it does not spell the answer. */
function cellsOf(content: string, logprobs: readonly TokenLogprob[]): Cell[] | null {
  const decoder = new TextDecoder();
  const cells: Cell[] = [];
  let start = 0;
  for (const entry of logprobs) {
    const bytes = entry.bytes ?? [...new TextEncoder().encode(entry.token)];
    const text = decoder.decode(new Uint8Array(bytes), { stream: true });
    // The first bytes of a character have no text yet; the cell that completes it shows it.
    if (text === "") continue;
    cells.push({
      text,
      start,
      confidence: Math.exp(entry.logprob),
      step: null,
      isForced: isForced(entry),
      top: entry.top_logprobs,
    });
    start += text.length;
  }
  return fit(cells, content);
}

/** A token without alternatives had none: the grammar left nothing else to stand there. */
function isForced(entry: TokenLogprob): boolean {
  return entry.logprob === 0 && entry.top_logprobs.length === 0;
}

/** A stop string may cut the last cell short; anything else that differs is not our text. */
function fit(cells: Cell[], content: string): Cell[] | null {
  if (
    content === "" ||
    !cells
      .map((cell) => cell.text)
      .join("")
      .startsWith(content)
  )
    return null;
  const kept = cells.filter((cell) => cell.start < content.length);
  return kept.map((cell) => ({ ...cell, text: content.slice(cell.start, cell.start + cell.text.length) }));
}
