// Recordings: how committed tokens become cells, and that every frame keeps the API's own text.

import { describe, expect, test } from "vitest";
import { demonstration } from "../src/diffusion/demo";
import { Recording } from "../src/diffusion/recording";
import { pack, unpack } from "../src/diffusion/recording_file";
import type { FrameDetail, FrameToken } from "../src/wire/types";

const draft = (text: string, confidence = 0.5): FrameToken => [text, "masked", confidence];
const decided = (text: string): FrameToken => [text, "decided", 0.9];
const committed = (text: string, p: number | null = null): FrameToken => [text, "committed", p];
const forced = (text: string): FrameToken => [text, "forced", 1, []];

/** Adds a frame whose every canvas position is shown, unless `part` says otherwise. */
function add(recording: Recording, content: string, tokens: FrameToken[], part: Partial<FrameDetail> = {}): void {
  const canvas = tokens.filter(([, state]) => state === "masked" || state === "decided");
  const tail = canvas.slice(0, part.shown).map(([text]) => text);
  const step = recording.frames.length + 1;
  const detail = { step, decided: 0, masked: 0, confidence: 0, shown: canvas.length };
  const length = [...content].length - [...tail.join("")].length;
  recording.addFrame(step, content, { ...detail, committed: length, ...part }, tokens);
}

function recorded(): Recording {
  const recording = new Recording();
  add(recording, "The cat sag", [committed("The", 0.8), draft(" cat"), draft(" sag")]);
  add(recording, "The cat sat", [committed(" cat"), committed(" sat", 0.7)]);
  recording.finish(3, "The cat sat");
  return recording;
}

describe("a recording", () => {
  test("has a cell for every committed token", () => {
    expect(recorded().cells.map(({ text, start }) => [text, start])).toEqual([
      ["The", 0],
      [" cat", 3],
      [" sat", 7],
    ]);
  });
  test("takes the confidence of the draft where the token has none of its own", () => {
    expect(recorded().cells.map((cell) => cell.confidence)).toEqual([0.8, 0.5, 0.7]);
  });
  test("keeps every frame's text verbatim, and ends with the answer", () => {
    expect([0, 1].map((i) => recorded().contentAt(i))).toEqual(["The cat sag", "The cat sat"]);
    expect(recorded().frames).toHaveLength(2);
  });
  test("marks forced tokens, and keeps alternatives", () => {
    const recording = new Recording();
    add(recording, '{"a":1}', [forced('{"a":'), ["1", "committed", 0.6, [["2", 0.3]]], forced("}")]);
    expect(recording.cells.map((cell) => cell.isForced)).toEqual([true, false, true]);
    expect(recording.cells[1]?.top).toEqual([["2", 0.3]]);
  });
  test("leaves positions behind an end out of the text", () => {
    const recording = new Recording();
    add(recording, "Hi!", [committed("Hi"), draft("!"), draft("<|im_end|>"), draft("x")], { shown: 1 });
    expect(recording.frames[0]).toMatchObject({ committed: 2, tail: "!", numShown: 1 });
  });
  test("remembers the forward in which a token was decided, and the one in which it was committed", () => {
    const recording = new Recording();
    add(recording, "ab", [decided("a"), draft("b")]);
    add(recording, "ab", [decided("a"), decided("b")]);
    add(recording, "ab", [committed("a"), committed("b")]);
    expect(recording.cells.map(({ step, committedAt }) => [step, committedAt])).toEqual([
      [1, 3],
      [2, 3],
    ]);
  });
  test("covers text without tokens by words, until tokens for it come", () => {
    const recording = new Recording();
    add(recording, "one two", []);
    expect(recording.cells.map((cell) => cell.text)).toEqual(["one", " two"]);
    add(recording, "one two", [committed("on"), committed("e two")]);
    expect(recording.cells.map((cell) => cell.text)).toEqual(["on", "e two"]);
  });
  test("skips tokens that the text leaves out", () => {
    const recording = new Recording();
    add(recording, "yes", [committed("\n"), committed("yes")]);
    expect(recording.cells.map((cell) => cell.text)).toEqual(["yes"]);
  });
  test("keeps what is committed when it is stopped, counted in code points", () => {
    const recording = new Recording();
    add(recording, "👋 wor", [committed("👋"), draft(" wor")]);
    expect(recording.committedText).toBe("👋");
    recording.finish(2, recording.committedText);
    expect(recording.contentAt(1)).toBe("👋");
    expect(recording.cells.map((cell) => cell.text)).toEqual(["👋"]);
  });
  test("cuts the last cell where the answer ends inside it", () => {
    const recording = new Recording();
    add(recording, "one", [committed("on"), committed("e")]);
    recording.finish(2, "o");
    expect(recording.cells.map((cell) => cell.text)).toEqual(["o"]);
  });
  test("is the same after it was saved", () => {
    const saved = unpack(JSON.parse(JSON.stringify(pack(recorded()))));
    expect(saved.frames).toEqual(recorded().frames);
    expect(saved.cells).toEqual(recorded().cells);
  });
});

test("the demonstration starts from masks and ends as a sentence of committed tokens", () => {
  const shown = demonstration();
  expect(shown.frames[0]?.tokens.every(([, state, confidence]) => state === "masked" && confidence === 0)).toBe(true);
  expect(shown.contentAt(shown.frames.length - 1)).toBe("Masks become drafts, drafts settle, and settled text stays.");
  expect(shown.cells.map((cell) => cell.text).join("")).toBe(shown.content);
});
