// Two texts as one list of lines: kept, removed, added. Marked by sign as well as by colour.

import { diffLines } from "diff";

interface Line {
  sign: " " | "+" | "-";
  text: string;
}

export function linesOf(before: string, after: string): Line[] {
  return diffLines(before, after).flatMap((part) => {
    const sign = part.added ? "+" : part.removed ? "-" : " ";
    return part.value
      .replace(/\n$/u, "")
      .split("\n")
      .map((text): Line => ({ sign, text }));
  });
}

export function DiffView({ before, after, label }: { before: string; after: string; label: string }) {
  if (before === after) return <p role="status">Nothing to change.</p>;
  return (
    <pre class="diff" role="region" aria-label={label} tabIndex={0}>
      {linesOf(before, after).map(({ sign, text }, i) => (
        <span key={i} class={sign === "+" ? "added" : sign === "-" ? "removed" : "kept"}>{`${sign} ${text}\n`}</span>
      ))}
    </pre>
  );
}
