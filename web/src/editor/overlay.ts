// The decorations of a suggestion: text at the cursor, or removed lines marked and added lines below them.

import type { EditorState, Range } from "@codemirror/state";
import { Decoration, WidgetType, type DecorationSet } from "@codemirror/view";
import { linesOf, type Hunk } from "./hunks";
import type { Suggestion } from "./suggestion";

const REMOVED = Decoration.line({ class: "qs-removed" });

export function drawSuggestion(state: EditorState, shown: Suggestion | null): DecorationSet {
  if (shown === null) return Decoration.none;
  if (shown.kind === "ghost") {
    return Decoration.set([Decoration.widget({ widget: new GhostText(shown.text), side: 1 }).range(shown.at)]);
  }
  return Decoration.set(
    shown.hunks.flatMap((hunk, i) => drawHunk(state, hunk, i === 0 ? hint(state, hunk) : "")),
    true,
  );
}

/** Whether the cursor is on a line that the hunk changes, or at the place where it adds lines. */
export function isAtHunk(state: EditorState, hunk: Hunk): boolean {
  const line = (offset: number) => state.doc.lineAt(Math.min(offset, state.doc.length)).number;
  const head = line(state.selection.main.head);
  return head >= line(hunk.from) && head <= line(Math.max(hunk.from, hunk.to - 1));
}

function hint(state: EditorState, hunk: Hunk): string {
  const { number } = state.doc.lineAt(Math.min(hunk.from, state.doc.length));
  return isAtHunk(state, hunk) ? "Tab accepts · Esc rejects" : `Tab jumps to line ${number} · Esc rejects`;
}

function drawHunk(state: EditorState, { from, to, insert }: Hunk, note: string): Range<Decoration>[] {
  const drawn: Range<Decoration>[] = [];
  for (let at = from; at < to; ) {
    const line = state.doc.lineAt(at);
    drawn.push(REMOVED.range(line.from));
    at = line.to + 1;
  }
  const isInsertion = from === to;
  const place = isInsertion ? from : state.doc.lineAt(to - 1).to;
  const isAbove = isInsertion && from < state.doc.length;
  const widget = new AddedLines(linesOf(insert), note);
  drawn.push(Decoration.widget({ widget, block: true, side: isAbove ? -1 : 1 }).range(place));
  return drawn;
}

class GhostText extends WidgetType {
  constructor(readonly text: string) {
    super();
  }

  override eq(other: GhostText): boolean {
    return other.text === this.text;
  }

  override toDOM(): HTMLElement {
    const span = document.createElement("span");
    span.className = "qs-ghost";
    span.textContent = this.text;
    return span;
  }
}

class AddedLines extends WidgetType {
  constructor(
    readonly lines: readonly string[],
    readonly note: string,
  ) {
    super();
  }

  override eq(other: AddedLines): boolean {
    return other.note === this.note && other.lines.join("\n") === this.lines.join("\n");
  }

  override toDOM(): HTMLElement {
    const box = document.createElement("div");
    box.className = "qs-added-lines";
    for (const text of this.lines) box.append(lineElement("qs-added", text));
    if (this.note) box.append(lineElement("qs-note", this.note));
    return box;
  }
}

function lineElement(name: string, text: string): HTMLElement {
  const line = document.createElement("div");
  line.className = name;
  // An element without content has no height.
  if (text === "") line.append(document.createElement("br"));
  else line.textContent = text;
  return line;
}
