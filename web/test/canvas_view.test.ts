// The diffusion view: its text is the frame's text, forwards and backwards, and edits flash.

import { describe, expect, test } from "vitest";
import { CanvasView, isEdit, stateOf } from "../src/diffusion/canvas_view";
import { Recording } from "../src/diffusion/recording";
import type { FrameToken } from "../src/wire/types";

function shownText(root: HTMLElement): string {
  return [...root.querySelectorAll(".cell:not(.beyond)")].map((cell) => cell.textContent).join("");
}

function add(recording: Recording, content: string, shown: number, tokens: FrameToken[]): void {
  const step = recording.frames.length + 1;
  const detail = { step, committed: 0, decided: 0, masked: 0, confidence: 0, shown };
  recording.addFrame(step, content, detail, tokens);
}

function recorded(): Recording {
  const recording = new Recording();
  const canvas: FrameToken[] = [
    ["b", "decided", 0.9],
    ["x", "decided", 0.4],
    ["<|im_end|>", "masked", 0.3],
  ];
  add(recording, "abx", 2, [["a", "committed", 0.9], ...canvas]);
  add(recording, "abc", 2, [canvas[0]!, ["c", "decided", 0.9], canvas[2]!]);
  recording.finish(3, "abc");
  return recording;
}

describe("the view", () => {
  test("shows the text of any frame, in any order", () => {
    const root = document.createElement("div");
    const recording = recorded();
    const view = new CanvasView(root, recording);
    for (const index of [0, 2, 1, 0, 2]) {
      view.show(index, 0);
      expect(shownText(root)).toBe(recording.contentAt(index));
    }
  });
  test("marks a decided token that changed", () => {
    const root = document.createElement("div");
    new CanvasView(root, recorded()).show(1, 0);
    expect([...root.querySelectorAll(".edited")].map((cell) => cell.textContent)).toEqual(["c"]);
  });
  test("adds masks that have no text", () => {
    const root = document.createElement("div");
    new CanvasView(root, recorded()).show(0, 5);
    expect(root.querySelectorAll(".ghost")).toHaveLength(2);
    expect(shownText(root)).toBe("abx");
  });
  test("starts over when cells were cut anew", () => {
    const root = document.createElement("div");
    const recording = new Recording();
    add(recording, "one two", 0, []);
    const view = new CanvasView(root, recording);
    view.show(0, 0);
    add(recording, "one two", 0, [
      ["on", "committed", 1],
      ["e two", "forced", 1],
    ]);
    view.show(recording.frames.length - 1, 0);
    expect([...root.querySelectorAll(".cell")].map((cell) => cell.textContent)).toEqual(["on", "e two"]);
    expect(root.querySelector(".forced")?.textContent).toBe("e two");
  });
});

test("a long jump takes several goes, and lines keep to their runs", () => {
  const root = document.createElement("div");
  const recording = new Recording();
  const line = "word ".repeat(20) + "end\n";
  recording.addCommitted(1, line);
  const words = line.repeat(59).match(/\S+\s/gu)!;
  const tokens = words.map((text): FrameToken => [text, "committed", 1]);
  add(recording, line.repeat(60), 0, tokens);
  const view = new CanvasView(root, recording);
  let goes = 1;
  while (!view.show(1, 0)) goes++;
  expect(goes).toBe(4);
  expect(root.textContent).toBe(line.repeat(60));
  expect([...root.querySelectorAll(".run")].slice(0, -1).every((run) => run.textContent?.endsWith("end\n"))).toBe(true);
  while (!view.show(0, 0));
  expect(root.textContent).toBe(line);
  expect(root.querySelectorAll(".run")).toHaveLength(1);
});

test("a masked position with a guess is a draft", () => {
  expect(stateOf(["a", "masked", 0.2])).toBe("draft");
  expect(stateOf(["a", "masked", 0])).toBe("masked");
  expect(stateOf(["a", "decided", 0])).toBe("decided");
});

test("a draft that changes is no edit", () => {
  expect(isEdit(["a", "masked", 0.2], ["b", "decided", 0.9])).toBe(false);
  expect(isEdit(["a", "decided", 0.9], ["b", "decided", 0.9])).toBe(true);
});
