// The next-edit prompt in Mercury's form, and the region of a reply.

const LINES_ABOVE = 5;
const LINES_BELOW = 10;

export interface Region {
  start: number;
  end: number;
}

/** Whole lines around the cursor that may be rewritten. */
export function regionAround(code: string, cursor: number): Region {
  const starts = [0, ...[...code.matchAll(/\n/gu)].map((match) => match.index + 1)];
  const line = starts.findLastIndex((start) => start <= cursor);
  const start = starts[Math.max(0, line - LINES_ABOVE)] ?? 0;
  const next = starts[line + LINES_BELOW + 1];
  return { start, end: next === undefined ? code.length : next - 1 };
}

export function editPrompt(file: string, code: string, cursor: number, region: Region, history: string): string {
  const inside = `${code.slice(region.start, cursor)}<|cursor|>${code.slice(cursor, region.end)}`;
  return [
    "<|recently_viewed_code_snippets|>\n\n<|/recently_viewed_code_snippets|>\n",
    `<|current_file_content|>\ncurrent_file_path: ${file}`,
    `${code.slice(0, region.start)}<|code_to_edit|>\n${inside}\n<|/code_to_edit|>${code.slice(region.end)}`,
    "<|/current_file_content|>\n",
    `<|edit_diff_history|>\n${history}\n<|/edit_diff_history|>`,
  ].join("\n");
}

/** The region comes inside a bare fence; anything else is taken as it is. */
export function unfence(content: string): string {
  const match = /^```[^\n]*\n([\s\S]*?)\n?```\s*$/u.exec(content);
  return match?.[1] ?? content;
}
