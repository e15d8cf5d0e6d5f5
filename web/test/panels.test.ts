// The panels' plain parts: prompts, diffs, snippets, sums.

import { describe, expect, test } from "vitest";
import { editPrompt, regionAround, unfence } from "../src/panels/edit_prompt";
import { hunksOf, linesOf } from "../src/editor/hunks";
import { snippet } from "../src/panels/snippet";
import { bucketed, type Entry } from "../src/store/ledger";
import { printable } from "../src/ui/format";

const CODE = Array.from({ length: 30 }, (_, i) => `line ${i}`).join("\n");

describe("next edit", () => {
  test("the region is whole lines around the cursor", () => {
    const { start, end } = regionAround(CODE, CODE.indexOf("line 10"));
    expect(CODE.slice(start, end).split("\n")).toEqual(CODE.split("\n").slice(5, 21));
  });
  test("the prompt holds every section once, and the file in order", () => {
    const cursor = CODE.indexOf("line 10") + 4;
    const prompt = editPrompt("a.py", CODE, cursor, regionAround(CODE, cursor), "diff");
    const bare = prompt.replaceAll(/<\|[a-z_/]+\|>\n?/gu, "");
    for (const name of ["recently_viewed_code_snippets", "current_file_content", "code_to_edit", "edit_diff_history"]) {
      expect(prompt.split(`<|${name}|>`)).toHaveLength(2);
      expect(prompt.split(`<|/${name}|>`)).toHaveLength(2);
    }
    expect(bare.match(/line \d+/gu)?.length).toBe(30);
  });
  test("a fence is taken off, and nothing else", () => {
    expect(unfence("```\na\n\nb\n```")).toBe("a\n\nb");
    expect(unfence("plain")).toBe("plain");
  });
});

describe("hunks", () => {
  const apply = (text: string, after: string) =>
    hunksOf(text, after).reduceRight((code, { from, to, insert }) => code.slice(0, from) + insert + code.slice(to), text);
  test("are whole lines, in order", () => {
    expect(hunksOf("a\nb\nc\nd\n", "a\nB\nc\n\nd\n")).toEqual([
      { from: 2, to: 4, insert: "B\n" },
      { from: 6, to: 6, insert: "\n" },
    ]);
    expect(hunksOf("a\n", "a\n")).toEqual([]);
  });
  test("give the second text when they are applied", () => {
    const texts = ["", "a", "a\n", "a\nb", "b\na\n", "\n\na\n\nb\n", "a\nx\nb\ny\nc", "x\n\ny"];
    for (const before of texts) for (const after of texts) expect(apply(before, after)).toBe(after);
  });
  test("keep blank lines", () => {
    expect(linesOf("a\n\nb\n")).toEqual(["a", "", "b"]);
    expect(linesOf("\n")).toEqual([""]);
    expect(linesOf("")).toEqual([]);
  });
});

describe("a snippet", () => {
  const body = { messages: [{ role: "user", content: 'it\'s "so"\n' }], stream: true };
  const sent = { path: "/p", body, at: 0, hadKey: false };
  test("quotes the body for the shell", () => {
    expect(snippet("curl", "http://h", sent)).toContain(`it'\\''s`);
  });
  test("sends the same body from JavaScript", () => {
    const text = snippet("javascript", "http://h", sent);
    const json = /JSON\.stringify\(([\s\S]*)\),\n\}\);/u.exec(text)?.[1] ?? "";
    expect(JSON.parse(json)).toEqual(body);
  });
  test("leaves a key to the environment, and asks for one only where one was sent", () => {
    for (const language of ["curl", "python", "javascript"] as const) {
      expect(snippet(language, "http://h", sent)).not.toContain("Authorization");
      expect(snippet(language, "http://h", { ...sent, hadKey: true })).toContain("QUICKSILVER_API_KEY");
    }
  });
});

test("usage is summed by span", () => {
  const entry = (at: number): Entry => ({
    at,
    kind: "chat",
    model: "m",
    promptTokens: 1,
    completionTokens: 2,
    forwards: 1,
    seconds: 1,
    cost: 0.5,
  });
  const buckets = bucketed([entry(1500), entry(2100), entry(2900)], 2999, 1000, 3);
  expect(buckets.map((bucket) => [bucket.requests, bucket.tokensIn + bucket.tokensOut, bucket.cost])).toEqual([
    [0, 0, 0],
    [1, 3, 0.5],
    [2, 6, 1],
  ]);
});

test("whitespace is made visible", () => {
  expect(printable(" a\n\t")).toBe("␣a⏎⇥");
});
