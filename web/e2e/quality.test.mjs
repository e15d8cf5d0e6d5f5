// Two things a user feels: a long answer never stalls the page, and every panel is usable without eyes or mouse.

import assert from "node:assert/strict";
import { createRequire } from "node:module";
import { readFileSync } from "node:fs";
import { after, before, test } from "node:test";
import { openPanel, openStage, ready, say } from "./stage.mjs";
import { mainThreadTasks, traced } from "./trace.mjs";

const MAX_TASK_MS = 100;
const PANELS = ["chat", "race", "compare", "structured", "tools", "code", "usage", "api", "keys", "docs/guides/playground.md"];
const AXE = readFileSync(createRequire(import.meta.url).resolve("axe-core/axe.min.js"), "utf8");
let stage, page;

before(async () => {
  stage = await openStage();
  page = stage.page;
  await ready(page, stage.url);
});
after(async () => {
  await stage.close();
});

test(
  "a 2,000-token answer has no long task, while it streams and while it is replayed",
  { timeout: 120_000 },
  async () => {
    await page.getByLabel("Max tokens").fill("2000");
    await page.getByLabel("Max tokens").blur();
    const events = await traced(stage.context, page, async () => {
      const answer = await say(page, "a long answer, please");
      assert.match(await answer.locator(".meter").textContent(), /^2000 tokens/u);
      await answer.getByRole("button", { name: "Diffusion" }).click();
      await scrub(answer);
      assert.equal(await answer.locator(".cell.committed").count(), 2000);
    });
    const tasks = mainThreadTasks(events);
    const num = (ms) => tasks.filter((task) => task > ms).length;
    console.log(
      `${tasks.length} tasks, longest ${tasks[0].toFixed(1)} ms; ${num(16.7)} over 16.7 ms, ${num(50)} over 50 ms`,
    );
    assert.ok(tasks.length > 500, "the trace is empty");
    assert.equal(num(MAX_TASK_MS), 0);
  },
);

async function scrub(answer) {
  const range = answer.getByLabel("Denoising step");
  const last = Number(await range.getAttribute("max"));
  for (const share of [0, 0.25, 0.5, 0.75, 1]) {
    const index = Math.round(last * share);
    await range.fill(String(index));
    await answer.locator(`.cells[data-frame="${index}"]`).waitFor();
  }
}

for (const theme of ["light", "dark"]) {
  test(`axe finds nothing serious in the ${theme} theme`, { timeout: 120_000 }, async () => {
    await page.getByLabel("Theme").selectOption(theme);
    const findings = [];
    for (const panel of PANELS) {
      await openPanel(page, stage.url, panel);
      if (panel === "code") await page.getByLabel("files.py").waitFor();
      findings.push(...(await serious(panel)));
    }
    assert.deepEqual(findings, []);
  });
}

test("axe finds nothing serious in a conversation on a phone", async () => {
  await page.setViewportSize({ width: 390, height: 780 });
  await openPanel(page, stage.url, "chat");
  const answer = await say(page, "Hello there");
  assert.deepEqual(await serious("conversation"), []);
  await answer.getByRole("button", { name: "Diffusion" }).click();
  await answer.getByLabel("Denoising step").waitFor();
  assert.deepEqual(await serious("scrubber"), []);
});

/** axe is put in by the debugger, which the page's policy does not bind. */
async function serious(place) {
  await page.evaluate(AXE);
  const { violations } = await page.evaluate(() => window.axe.run(document, { resultTypes: ["violations"] }));
  const bad = violations.filter(({ impact }) => impact === "serious" || impact === "critical");
  return bad.map(
    ({ id, nodes }) =>
      `${place}: ${id}: ${nodes
        .map((node) => node.html)
        .slice(0, 3)
        .join(" ")}`,
  );
}
