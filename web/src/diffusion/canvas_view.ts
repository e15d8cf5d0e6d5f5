// The diffusion view: one span a token, from mask to draft to committed, shaded by confidence.
//
// Works on the DOM directly: committed cells are appended once and never touched again, in runs of whole lines that the
// browser lays out and paints by themselves, so a frame costs as much as its canvas however long the answer is. All
// text is set as text.

import type { FrameToken } from "../wire/types";
import { numCellsBefore, type Cell, type Frame, type Recording } from "./recording";

export type CellState = "committed" | "decided" | "draft" | "masked";

const MASK_GLYPHS = "░▒░▓░▒▒░";
const NUM_SHADES = 10;
/** Cells after which a run ends at the next line break. */
const RUN_LEN = 48;
/** Committed cells added or removed at one go; a long jump takes several. */
const MAX_MOVED = 400;

export class CanvasView {
  private readonly canvas = document.createElement("span");
  private readonly runs: HTMLElement[] = [];
  private readonly spans: HTMLElement[] = [];
  private version = 0;
  private partial: HTMLElement | null = null;
  private frame: Frame | null = null;

  constructor(
    readonly root: HTMLElement,
    private readonly recording: Recording,
  ) {
    this.startOver();
  }

  /** Shows one frame; `numGhosts` masks stand for positions that the server has not proposed anything for.
   * False: the way was too long for one go, call again. */
  show(index: number, numGhosts: number): boolean {
    const frame = this.recording.frames[index];
    if (frame === undefined) {
      this.canvas.replaceChildren(...ghosts(numGhosts));
      return true;
    }
    if (!this.showCommitted(frame)) return false;
    this.showCanvas(frame, this.recording.frames[index - 1], numGhosts);
    this.frame = frame;
    return true;
  }

  /** What a cell element stands for. */
  inspect(element: Element): { cell: Cell | null; token: FrameToken | null } {
    const atToken = [...this.canvas.children].indexOf(element);
    const atCell = atToken < 0 ? this.spans.indexOf(element as HTMLElement) : -1;
    return { cell: this.recording.cells[atCell] ?? null, token: this.frame?.tokens[atToken] ?? null };
  }

  get elements(): Element[] {
    return [...this.spans, ...this.canvas.children];
  }

  private showCommitted(frame: Frame): boolean {
    if (this.version !== this.recording.version) this.startOver();
    this.partial?.remove();
    this.partial = null;
    const cells = this.recording.cells;
    const target = numCellsBefore(cells, frame.committed);
    const lastCell = cells[target - 1];
    const isCut = lastCell !== undefined && lastCell.start + lastCell.text.length > frame.committed;
    if (!this.keep(isCut ? target - 1 : target)) return false;
    if (isCut) {
      this.partial = committedElement({ ...lastCell, text: lastCell.text.slice(0, frame.committed - lastCell.start) });
      this.canvas.before(this.partial);
    }
    return true;
  }

  /** Moves towards `num` committed cells; whether it got there. */
  private keep(num: number): boolean {
    const target = Math.max(this.spans.length - MAX_MOVED, Math.min(this.spans.length + MAX_MOVED, num));
    while (this.spans.length > target) this.dropCell();
    for (const cell of this.recording.cells.slice(this.spans.length, target)) this.addCell(cell);
    return target === num;
  }

  private addCell(cell: Cell): void {
    const element = committedElement(cell);
    this.spans.push(element);
    this.canvas.before(element);
    const run = this.runs.at(-1);
    if (run && run.childElementCount > RUN_LEN && cell.text.endsWith("\n")) this.openRun();
  }

  private dropCell(): void {
    this.spans.pop()?.remove();
    const run = this.runs.at(-1);
    if (this.runs.length > 1 && run?.childElementCount === 1) {
      this.runs.pop();
      this.runs.at(-1)?.append(this.canvas);
      run.remove();
    }
  }

  private openRun(): void {
    const run = document.createElement("div");
    run.className = "run";
    run.append(this.canvas);
    this.runs.push(run);
    this.root.append(run);
  }

  private startOver(): void {
    this.version = this.recording.version;
    this.runs.length = 0;
    this.spans.length = 0;
    this.root.replaceChildren();
    this.openRun();
  }

  private showCanvas(frame: Frame, before: Frame | undefined, numGhosts: number): void {
    const isSame = before !== undefined && before.committed === frame.committed;
    const cells = frame.tokens.map((token, i) => {
      const element = tokenElement(token, i < frame.numShown);
      if (isSame && isEdit(before.tokens[i], token)) element.classList.add("edited");
      return element;
    });
    this.canvas.replaceChildren(...cells, ...ghosts(numGhosts - cells.length));
  }
}

export function stateOf([, state, confidence]: FrameToken): CellState {
  if (state !== "masked") return "decided";
  return confidence ? "draft" : "masked";
}

/** A decided position whose token changed. */
export function isEdit(before: FrameToken | undefined, now: FrameToken): boolean {
  return before !== undefined && stateOf(before) === "decided" && before[0] !== now[0];
}

function committedElement(cell: Cell): HTMLElement {
  const element = cellElement(cell.text, "committed", cell.confidence);
  if (cell.isForced) element.classList.add("forced");
  return element;
}

function tokenElement(token: FrameToken, isShown: boolean): HTMLElement {
  const state = stateOf(token);
  const element = cellElement(state === "masked" ? "" : token[0], state, token[2]);
  if (state === "masked") element.dataset["glyph"] = MASK_GLYPHS.slice(0, 2);
  if (!isShown) element.classList.add("beyond");
  return element;
}

function cellElement(text: string, state: CellState, confidence: number | null): HTMLElement {
  const element = document.createElement("span");
  element.className = `cell ${state}`;
  element.textContent = text;
  if (confidence !== null) element.classList.add(`shade-${shade(confidence)}`);
  return element;
}

function shade(confidence: number): number {
  return Math.max(0, Math.min(NUM_SHADES - 1, Math.floor(confidence * NUM_SHADES)));
}

function ghosts(num: number): HTMLElement[] {
  return Array.from({ length: Math.max(0, num) }, (_, i) => {
    const element = cellElement("", "masked", null);
    element.classList.add("ghost");
    element.dataset["glyph"] = MASK_GLYPHS.slice(i % 7, (i % 7) + 2);
    return element;
  });
}
