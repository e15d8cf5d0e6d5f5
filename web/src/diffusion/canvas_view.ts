// The diffusion view: one span a token, from mask to draft to committed, shaded by confidence.
//
// Works on the DOM directly: committed cells are appended once and never touched again, so a frame costs as much as
// its canvas however long the answer is. All text is set as text.

import type { FrameToken } from "../wire/types";
import { numCellsBefore, type Cell, type Frame, type Recording } from "./recording";

export type CellState = "committed" | "decided" | "draft" | "masked";

const MASK_GLYPHS = "░▒░▓░▒▒░";
const NUM_SHADES = 10;

export class CanvasView {
  private readonly committed = document.createElement("span");
  private readonly canvas = document.createElement("span");
  private numShown = 0;
  private version = 0;
  private partial: HTMLElement | null = null;
  private frame: Frame | null = null;

  constructor(
    readonly root: HTMLElement,
    private readonly recording: Recording,
  ) {
    root.replaceChildren(this.committed, this.canvas);
  }

  /** Shows one frame; `numGhosts` masks stand for positions that the server has not proposed anything for. */
  show(index: number, numGhosts: number): void {
    const frame = this.recording.frames[index];
    if (frame === undefined) {
      this.canvas.replaceChildren(...ghosts(numGhosts));
      return;
    }
    this.showCommitted(frame);
    this.showCanvas(frame, this.recording.frames[index - 1], numGhosts);
    this.frame = frame;
  }

  /** What a cell element stands for. */
  inspect(element: Element): { cell: Cell | null; token: FrameToken | null } {
    const atCell = [...this.committed.children].indexOf(element);
    const atToken = [...this.canvas.children].indexOf(element);
    return { cell: this.recording.cells[atCell] ?? null, token: this.frame?.tokens[atToken] ?? null };
  }

  get elements(): Element[] {
    return [...this.committed.children, ...this.canvas.children];
  }

  private showCommitted(frame: Frame): void {
    if (this.version !== this.recording.version) this.startOver();
    this.partial?.remove();
    this.partial = null;
    const cells = this.recording.cells;
    const target = numCellsBefore(cells, frame.committed);
    const lastCell = cells[target - 1];
    const isCut = lastCell !== undefined && lastCell.start + lastCell.text.length > frame.committed;
    this.keep(isCut ? target - 1 : target);
    if (isCut) {
      this.partial = committedElement({ ...lastCell, text: frame.content.slice(lastCell.start, frame.committed) });
      this.committed.append(this.partial);
    }
  }

  private keep(num: number): void {
    while (this.numShown > num) {
      this.committed.lastElementChild?.remove();
      this.numShown--;
    }
    const fresh = this.recording.cells.slice(this.numShown, num).map(committedElement);
    this.committed.append(...fresh);
    this.numShown = num;
  }

  private startOver(): void {
    this.version = this.recording.version;
    this.committed.replaceChildren();
    this.numShown = 0;
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
  return confidence > 0 ? "draft" : "masked";
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
