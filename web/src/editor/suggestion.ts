// A suggestion inside an editor: ghost text at the cursor, or an edit drawn as a diff over the code.
//
// At most one suggestion is shown. Tab accepts ghost text. For an edit, Tab moves the cursor to the next hunk, or accepts
// the hunk that the cursor is on. Escape rejects. Without a suggestion both keys keep their usual meaning, so Tab leaves
// the editor.

import { EditorSelection, Prec, StateEffect, StateField, type EditorState, type Transaction } from "@codemirror/state";
import { EditorView, keymap } from "@codemirror/view";
import { drawSuggestion, isAtHunk } from "./overlay";
import type { Hunk } from "./hunks";

export interface Ghost {
  kind: "ghost";
  /** The id of the reply that held the suggestion. */
  id: string;
  at: number;
  text: string;
}

export interface Edit {
  kind: "edit";
  id: string;
  hunks: Hunk[];
}

export type Suggestion = Ghost | Edit;

export interface Decisions {
  /** Called once per suggestion, with the first decision about it. */
  onDecide: (suggestion: Suggestion, isAccepted: boolean) => void;
  /** Called when the last part of a suggestion was accepted. */
  onComplete: (suggestion: Suggestion) => void;
  /** Called when Escape is pressed and no suggestion is shown. Returns whether there was something to cancel. */
  onCancel: () => boolean;
}

export const suggest = StateEffect.define<Suggestion | null>();

export const suggestionField = StateField.define<Suggestion | null>({
  create: () => null,
  update: (value, transaction) => {
    for (const effect of transaction.effects) if (effect.is(suggest)) return effect.value;
    return value === null ? null : keepThrough(value, transaction);
  },
  provide: (field) =>
    EditorView.decorations.compute([field, "selection"], (state) => drawSuggestion(state, state.field(field))),
});

/** Text that repeats the start of the ghost text shortens it. Any other change removes the suggestion. */
function keepThrough(value: Suggestion, transaction: Transaction): Suggestion | null {
  const head = transaction.newSelection.main.head;
  if (!transaction.docChanged) return value.kind === "edit" || head === value.at ? value : null;
  if (value.kind === "edit" || head <= value.at) return null;
  const typed = transaction.newDoc.sliceString(value.at, head);
  const isOnlyInsertion = transaction.newDoc.length === transaction.startState.doc.length + typed.length;
  if (!isOnlyInsertion || !value.text.startsWith(typed) || typed === value.text) return null;
  return { ...value, at: head, text: value.text.slice(typed.length) };
}

export function suggestions(decisions: Decisions) {
  const decided = new Set<string>();
  const decide = (suggestion: Suggestion, isAccepted: boolean) => {
    if (decided.has(suggestion.id)) return;
    decided.add(suggestion.id);
    decisions.onDecide(suggestion, isAccepted);
  };
  const accept = (view: EditorView): boolean => {
    const shown = view.state.field(suggestionField);
    if (shown === null) return false;
    if (shown.kind === "edit" && !isAtFirst(view.state, shown)) return jump(view, shown);
    const rest = shown.kind === "ghost" ? insertGhost(view, shown) : applyFirst(view, shown);
    decide(shown, true);
    if (rest === null) decisions.onComplete(shown);
    return true;
  };
  const reject = (view: EditorView): boolean => {
    const shown = view.state.field(suggestionField);
    if (shown === null) return decisions.onCancel();
    view.dispatch({ effects: suggest.of(null) });
    decide(shown, false);
    return true;
  };
  const keys = [
    { key: "Tab", run: accept },
    { key: "Escape", run: reject },
  ];
  return { accept, reject, extension: [suggestionField, Prec.highest(keymap.of(keys))] };
}

function isAtFirst(state: EditorState, { hunks }: Edit): boolean {
  return hunks[0] !== undefined && isAtHunk(state, hunks[0]);
}

function jump(view: EditorView, { hunks }: Edit): boolean {
  const at = hunks[0]?.from ?? 0;
  view.dispatch({
    selection: EditorSelection.cursor(Math.min(at, view.state.doc.length)),
    effects: EditorView.scrollIntoView(at, { y: "center" }),
  });
  return true;
}

function insertGhost(view: EditorView, { at, text }: Ghost): null {
  view.dispatch({
    changes: { from: at, insert: text },
    selection: EditorSelection.cursor(at + text.length),
    effects: suggest.of(null),
    scrollIntoView: true,
    userEvent: "input.complete",
  });
  return null;
}

/** Applies the first hunk; the others stay, moved to their new places. Returns what is left. */
function applyFirst(view: EditorView, edit: Edit): Edit | null {
  const [first, ...others] = edit.hunks;
  if (first === undefined) return null;
  const by = first.insert.length - (first.to - first.from);
  const hunks = others.map((hunk) => ({ ...hunk, from: hunk.from + by, to: hunk.to + by }));
  const rest = hunks.length > 0 ? { ...edit, hunks } : null;
  const end = first.from + first.insert.replace(/\n$/u, "").length;
  view.dispatch({
    changes: first,
    selection: EditorSelection.cursor(end),
    effects: suggest.of(rest),
    scrollIntoView: true,
    userEvent: "input.complete",
  });
  return rest;
}
