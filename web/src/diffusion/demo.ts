// A denoising made by hand, to show on the first page how answers will look: a sentence about itself.

import type { FrameToken } from "../wire/types";
import { Recording } from "./recording";

const WORDS = ["Masks", " become", " drafts", ",", " drafts", " settle", ",", " and", " settled", " text", " stays", "."];
/** What an unsure draft says first. */
const SLIPS: Record<number, string> = { 1: " turn", 5: " grow", 9: " words", 10: " remains" };
/** Per position: the forward that first guesses it, and the one that decides. */
const GUESSED = [1, 2, 2, 1, 3, 3, 2, 3, 4, 4, 5, 4];
const DECIDED = [2, 4, 3, 2, 4, 5, 3, 4, 5, 6, 6, 5];
const NUM_FORWARDS = 7;
const FORWARD_MS = 430;

export function demonstration(): Recording {
  const recording = new Recording();
  for (let step = 0; step <= NUM_FORWARDS; step++) addForward(recording, step);
  recording.finish(NUM_FORWARDS * FORWARD_MS, WORDS.join(""));
  return recording;
}

/** The leading decided run leaves the canvas, as the decoders have it. */
function addForward(recording: Recording, step: number): void {
  const before = numCommitted(step - 1);
  const now = numCommitted(step);
  const fresh = WORDS.slice(before, now).map((text): FrameToken => [text, "committed", 0.95]);
  const canvas = WORDS.slice(now).map((_, i) => tokenAt(now + i, step));
  const content = WORDS.slice(0, now).join("") + canvas.map(([text]) => text).join("");
  const detail = { step, committed: content.length, decided: 0, masked: 0, confidence: 0, shown: canvas.length };
  recording.addFrame(step * FORWARD_MS, content, detail, [...fresh, ...canvas]);
}

function numCommitted(step: number): number {
  const open = DECIDED.findIndex((decided) => decided >= step);
  return open < 0 ? WORDS.length : open;
}

function tokenAt(position: number, step: number): FrameToken {
  const text = WORDS[position] ?? "";
  const decided = DECIDED[position] ?? 0;
  const guessed = GUESSED[position] ?? 0;
  if (step >= decided) return [text, "decided", 0.92];
  if (step < guessed) return [text, "masked", 0];
  return [SLIPS[position] ?? text, "masked", 0.25 + (0.5 * (step - guessed)) / Math.max(1, decided - guessed)];
}
