// Colours of the editor, from the page's custom properties: these reach into the shadow root, the page's rules do not.

import { HighlightStyle, syntaxHighlighting } from "@codemirror/language";
import { EditorView } from "@codemirror/view";
import { tags } from "@lezer/highlight";

const look = EditorView.theme({
  "&": { fontSize: "0.85rem", color: "var(--ink)", backgroundColor: "var(--sheet)" },
  "&.cm-focused": { outline: "2px solid var(--accent)", outlineOffset: "-1px" },
  ".cm-scroller": { fontFamily: "var(--mono)", lineHeight: "1.5" },
  ".cm-content": { caretColor: "var(--ink)", padding: "0.5rem 0" },
  ".cm-cursor": { borderLeftColor: "var(--ink)" },
  ".cm-gutters": { color: "var(--soft)", backgroundColor: "var(--wash)", borderRight: "1px solid var(--line)" },
  ".cm-activeLine, .cm-activeLineGutter": { backgroundColor: "transparent" },
  "&.cm-focused .cm-selectionBackground, .cm-selectionBackground, ::selection": {
    backgroundColor: "light-dark(#bcd6ee, #2f4d68) !important",
  },
  ".qs-ghost": { color: "var(--soft)", fontStyle: "italic", whiteSpace: "pre-wrap" },
  ".qs-removed": { backgroundColor: "var(--bad-wash)", textDecoration: "line-through" },
  ".qs-added-lines": { whiteSpace: "pre-wrap", paddingLeft: "6px" },
  ".qs-added": { backgroundColor: "var(--good-wash)" },
  ".qs-note": { color: "var(--soft)", fontFamily: "system-ui, sans-serif", fontSize: "0.8em" },
  "&.cm-merge-a .cm-changedLine, .cm-deletedChunk": { backgroundColor: "var(--bad-wash)" },
  "&.cm-merge-b .cm-changedLine, .cm-inlineChangedLine": { backgroundColor: "var(--good-wash)" },
  "&.cm-merge-a .cm-changedText, .cm-deletedChunk .cm-deletedText": {
    background: "color-mix(in srgb, var(--bad) 25%, transparent)",
  },
  "&.cm-merge-b .cm-changedText": { background: "color-mix(in srgb, light-dark(#1d6b34, #9bdcab) 25%, transparent)" },
});

const syntax = HighlightStyle.define([
  { tag: [tags.comment, tags.quote], color: "var(--soft)", fontStyle: "italic" },
  { tag: [tags.keyword, tags.operatorKeyword, tags.typeName], color: "light-dark(#7a2d8f, #d6a3f0)" },
  { tag: [tags.string, tags.special(tags.string)], color: "light-dark(#1d6b34, #9bdcab)" },
  { tag: [tags.number, tags.bool, tags.null], color: "light-dark(#9a4a00, #f2b878)" },
  { tag: [tags.function(tags.variableName), tags.definition(tags.variableName), tags.className], color: "var(--accent)" },
]);

export const theme = [look, syntaxHighlighting(syntax)];
