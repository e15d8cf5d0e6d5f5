// Fine-tuning: the loss curve of a job's events, and its path.

import { describe, expect, test } from "vitest";
import { pathOf } from "../src/ui/line_chart";
import { isOpen, lossesOf, type Job, type JobEvent } from "../src/wire/tuning";

function event(step: number | null, loss: number): JobEvent {
  const data = step === null ? {} : { step, train_loss: loss };
  return { id: `e${step}-${loss}`, created_at: 0, level: "info", type: step === null ? "message" : "metrics", message: "", data };
}

describe("losses", () => {
  test("are in order of steps, one per step, without other events", () => {
    const newestFirst = [event(3, 0.5), event(null, 9), event(2, 1), event(1, 2), event(1, 2)];
    expect(lossesOf(newestFirst)).toEqual([
      { step: 1, loss: 2 },
      { step: 2, loss: 1 },
      { step: 3, loss: 0.5 },
    ]);
  });
});

describe("a curve", () => {
  test("starts at the left edge, ends at the right one, and falls with the values", () => {
    const corners = pathOf([{ x: 1, y: 2 }, { x: 3, y: 0 }]).slice(1).split("L").map((corner) => corner.split(" ").map(Number));
    expect(corners).toEqual([
      [0, 4],
      [400, 116],
    ]);
  });
  test("of one point is a short line", () => {
    expect(pathOf([{ x: 5, y: 1 }])).toMatch(/^M0\.0 4\.0h4$/u);
  });
});

test("a job is open until it has ended", () => {
  const statuses = ["validating_files", "queued", "running", "paused", "succeeded", "proposed", "failed", "cancelled"] as const;
  const open = statuses.filter((status) => isOpen({ status } as Job));
  expect(open).toEqual(["validating_files", "queued", "running", "paused"]);
});
