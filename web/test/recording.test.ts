// Recordings: where committed text ends, how it is cut into cells, and that every frame keeps the API's own text.

import { describe, expect, test } from "vitest";
import { previewLength } from "../src/diffusion/preview";
import { Recording } from "../src/diffusion/recording";
import { pack, unpack } from "../src/diffusion/recording_file";
import type { FrameToken, TokenLogprob } from "../src/wire/types";

const draft = (text: string, confidence = 0.5): FrameToken => [text, "masked", confidence];
const decided = (text: string): FrameToken => [text, "decided", 0.9];

function token(text: string, isForced = false): TokenLogprob {
  const bytes = [...new TextEncoder().encode(text)];
  const top = isForced ? [] : [{ token: text, logprob: -0.1, bytes }];
  return { token: text, logprob: isForced ? 0 : -0.1, bytes, top_logprobs: top };
}

describe("where the canvas begins", () => {
  test("all tokens that end the text belong to it", () => {
    expect(previewLength("Hello wor", [draft(" wor")], 0)).toEqual({ numShown: 1, length: 4 });
  });
  test("tokens behind an end-of-text do not", () => {
    const tokens = [draft("!"), draft("<|im_end|>"), draft("x")];
    expect(previewLength("Hi!", tokens, 0)).toEqual({ numShown: 1, length: 1 });
  });
  test("a canvas of another channel is not part of the text", () => {
    expect(previewLength("", [draft("hmm")], 0)).toEqual({ numShown: 0, length: 0 });
  });
  test("half a character is left out", () => {
    expect(previewLength("a", [draft("a"), draft("\uFFFD")], 0)).toEqual({ numShown: 2, length: 1 });
  });
  test("a character spread over tokens counts once", () => {
    expect(previewLength("x👋y", [draft("\uFFFD"), draft("\uFFFD"), draft("y")], 1).length).toBeGreaterThanOrEqual(1);
  });
  test("committed text is never taken for canvas", () => {
    expect(previewLength("aa", [draft("a"), draft("a")], 1)).toEqual({ numShown: 1, length: 1 });
  });
});

describe("a recording", () => {
  function recorded(): Recording {
    const recording = new Recording();
    recording.addFrame(1, 1, "The cat sag", [draft(" cat"), draft(" sag")]);
    recording.addFrame(2, 2, "The cat sat", []);
    recording.finish(3, "The cat sat", []);
    return recording;
  }

  test("cuts committed text as the canvas had it", () => {
    expect(recorded().cells.map((cell) => cell.text)).toEqual(["The", " cat", " sat"]);
  });
  test("keeps the confidence of drafts that held", () => {
    expect(recorded().cells.map((cell) => cell.confidence)).toEqual([null, 0.5, null]);
  });
  test("keeps every frame's text verbatim, and ends with the answer", () => {
    expect([0, 1].map((i) => recorded().contentAt(i))).toEqual(["The cat sag", "The cat sat"]);
    expect(recorded().last?.committed).toBe("The cat sat".length);
  });
  test("takes the server's own tokens when they spell the answer", () => {
    const recording = new Recording();
    recording.addFrame(1, 1, '{"a":1}', []);
    recording.finish(2, '{"a":1}', [token('{"a":', true), token("1"), token("}", true)]);
    expect(recording.cells.map((cell) => cell.isForced)).toEqual([true, false, true]);
    expect(recording.cells[1]?.top[0]?.token).toBe("1");
  });
  test("leaves tokens alone that spell something else", () => {
    const recording = new Recording();
    recording.finish(2, "yes", [token("no")]);
    expect(recording.cells.map((cell) => cell.text)).toEqual(["yes"]);
  });
  test("cuts the last cell where a stop string cut the answer", () => {
    const recording = new Recording();
    recording.finish(2, "one", [token("on"), token("e\n\n")]);
    expect(recording.cells.map((cell) => cell.text)).toEqual(["on", "e"]);
  });
  test("joins the tokens of one character", () => {
    const recording = new Recording();
    const bytes = [...new TextEncoder().encode("👋")];
    const halves = [bytes.slice(0, 2), bytes.slice(2)].map((part) => ({ ...token("?"), bytes: part }));
    recording.finish(2, "👋", halves);
    expect(recording.cells.map((cell) => cell.text)).toEqual(["👋"]);
  });
  test("remembers the forward in which a token was decided", () => {
    const recording = new Recording();
    recording.addFrame(1, 1, "ab", [decided("a"), draft("b")]);
    recording.addFrame(2, 2, "ab", [decided("a"), decided("b")]);
    recording.addFrame(3, 3, "ab", []);
    expect(recording.cells.map((cell) => cell.step)).toEqual([1, 2]);
  });
  test("is the same after it was saved", () => {
    const saved = unpack(JSON.parse(JSON.stringify(pack(recorded()))));
    expect(saved.frames).toEqual(recorded().frames);
    expect(saved.cells).toEqual(recorded().cells);
  });
});
