// The difference of two texts as hunks: ranges of whole lines of the first text and what replaces each.

import { diffLines } from "diff";

export interface Hunk {
  /** Offsets in the text that is changed; `from` equals `to` where lines are only added. */
  from: number;
  to: number;
  insert: string;
}

/** In order, without overlap. Replacing every range gives `after`. */
export function hunksOf(before: string, after: string): Hunk[] {
  const hunks: Hunk[] = [];
  let at = 0;
  let open: Hunk | null = null;
  for (const part of diffLines(before, after)) {
    if (!part.added && !part.removed) {
      open = null;
      at += part.value.length;
      continue;
    }
    if (open === null) hunks.push((open = { from: at, to: at, insert: "" }));
    if (part.added) open.insert += part.value;
    else open.to = at += part.value.length;
  }
  return hunks;
}

/** The lines of a hunk's text; the break that ends the last one starts no further line. */
export function linesOf(text: string): string[] {
  return text === "" ? [] : text.replace(/\n$/u, "").split("\n");
}
