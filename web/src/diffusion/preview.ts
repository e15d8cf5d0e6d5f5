// Where the canvas begins in a snapshot: the server sends the whole text, and the canvas tokens that end it.
// Tokens behind an end-of-text, or of the reasoning channel, are not part of the text; a character whose bytes are
// spread over tokens shows in them as U+FFFD, and in the text as itself or not at all.

import type { FrameToken } from "../wire/types";

export interface Preview {
  /** Leading tokens that the text ends with. */
  numShown: number;
  /** UTF-16 units of text that they make up. */
  length: number;
}

/** The longest run of leading canvas tokens that `content` ends with, not reaching into committed text. */
export function previewLength(content: string, tokens: readonly FrameToken[], committed: number): Preview {
  for (let num = tokens.length; num > 0; num--) {
    const joined = tokens
      .slice(0, num)
      .map(([text]) => text)
      .join("");
    const start = endsWithPieces(content, joined.split(/\uFFFD+/u));
    if (start !== null && start >= committed) return { numShown: num, length: content.length - start };
  }
  return { numShown: 0, length: 0 };
}

/** Where the pieces begin if they end `content` with at most one odd character between two; else null. */
function endsWithPieces(content: string, pieces: readonly string[]): number | null {
  let end = content.length;
  for (let i = pieces.length - 1; i >= 0; i--) {
    const piece = pieces[i] ?? "";
    const gaps = i === pieces.length - 1 ? [0] : [0, 1, 2];
    const gap = gaps.find((skip) => content.endsWith(piece, end - skip) && end - skip >= piece.length);
    if (gap === undefined) return null;
    end -= gap + piece.length;
  }
  return end;
}
