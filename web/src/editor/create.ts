// Makes the editors of the Code panel. This module and CodeMirror are one chunk, loaded when the panel opens.
//
// Every editor is in a shadow root of its own. There CodeMirror puts its styles into adopted style sheets; in the
// document it would use a <style> element, which the page's policy refuses.

import { defaultKeymap, history, historyKeymap } from "@codemirror/commands";
import { javascript } from "@codemirror/lang-javascript";
import { python } from "@codemirror/lang-python";
import { bracketMatching, indentOnInput } from "@codemirror/language";
import { MergeView, unifiedMergeView } from "@codemirror/merge";
import { EditorState, Prec, type Extension } from "@codemirror/state";
import { drawSelection, EditorView, highlightSpecialChars, keymap, lineNumbers, type ViewUpdate } from "@codemirror/view";
import { theme } from "./theme";

export { suggest, suggestionField, suggestions } from "./suggestion";

export interface EditorOptions {
  label: string;
  text: string;
  /** Chooses the language by its ending. */
  file: string;
  cursor?: number;
  extensions?: Extension;
}

export function createEditor(host: HTMLElement, options: EditorOptions): EditorView {
  const root = shadowOf(host);
  const view = new EditorView({
    root,
    parent: root,
    doc: options.text,
    selection: { anchor: options.cursor ?? 0 },
    extensions: [options.extensions ?? [], basics(options.label, options.file)],
  });
  return view;
}

/** Both texts beside each other, or as one list of lines where there is no room for two. Returns what removes it. */
export function createDiff(host: HTMLElement, before: string, after: string, file: string, isNarrow: boolean): () => void {
  const root = shadowOf(host);
  const readOnly = [EditorState.readOnly.of(true), EditorView.editable.of(false)];
  const parts = (label: string): Extension[] => [basics(label, file), readOnly, focusable];
  if (isNarrow) {
    const merge = unifiedMergeView({ original: before, mergeControls: false, gutter: true });
    const view = new EditorView({ root, parent: root, doc: after, extensions: [...parts("Merged file"), merge] });
    return () => view.destroy();
  }
  const view = new MergeView({
    root,
    parent: root,
    a: { doc: before, extensions: parts("Original file") },
    b: { doc: after, extensions: parts("Merged file") },
    gutter: true,
  });
  return () => view.destroy();
}

/** Text that cannot be edited can still be reached and scrolled by keyboard. */
const focusable = EditorView.contentAttributes.of({ tabindex: "0" });

export function onUpdate(listener: (update: ViewUpdate) => void): Extension {
  return EditorView.updateListener.of(listener);
}

/** Ctrl+Space asks for a completion, Ctrl+Enter for the next edit. */
export function askKeys(complete: () => void, predict: () => void): Extension {
  const keys = [
    { key: "Ctrl-Space", run: () => (complete(), true) },
    { key: "Mod-Enter", run: () => (predict(), true) },
  ];
  return Prec.highest(keymap.of(keys));
}

function basics(label: string, file: string): Extension[] {
  return [
    lineNumbers(),
    highlightSpecialChars(),
    history(),
    drawSelection(),
    indentOnInput(),
    bracketMatching(),
    EditorView.lineWrapping,
    EditorView.contentAttributes.of({ "aria-label": label }),
    keymap.of([...defaultKeymap, ...historyKeymap]),
    languageOf(file),
    theme,
  ];
}

function languageOf(file: string): Extension {
  if (/\.pyi?$/u.test(file)) return python();
  if (/\.[cm]?[jt]sx?$/u.test(file)) return javascript({ jsx: /x$/u.test(file), typescript: /\.[cm]?ts/u.test(file) });
  return [];
}

function shadowOf(host: HTMLElement): ShadowRoot {
  const root = host.shadowRoot ?? host.attachShadow({ mode: "open" });
  root.replaceChildren();
  return root;
}
