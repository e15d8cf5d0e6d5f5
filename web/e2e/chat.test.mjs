// A whole conversation in a real browser: streaming, stop, retry, edit and branch, reload, the scrubber, the keyboard.

import assert from "node:assert/strict";
import { after, before, test } from "node:test";
import { openStage, ready, say, watchFor } from "./stage.mjs";

const FIRST_LOAD_BYTES = 300_000;
let stage, page;

before(async () => {
  stage = await openStage();
  page = stage.page;
});
after(async () => {
  await stage.close();
});

test("the first load is small, from this server alone, and clean", async () => {
  const sizes = [];
  const count = async (request) => {
    const { responseBodySize, responseHeadersSize } = await request.sizes();
    sizes.push(responseBodySize + responseHeadersSize);
  };
  page.on("requestfinished", count);
  await ready(page, stage.url);
  await page.waitForLoadState("networkidle");
  page.off("requestfinished", count);
  const total = sizes.reduce((sum, size) => sum + size, 0);
  console.log(`first load: ${total} bytes in ${sizes.length} requests`);
  assert.ok(total > 10_000 && total < FIRST_LOAD_BYTES);
});

test("the first page shows a sentence resolve, and then stands still", async () => {
  const demonstration = page.getByLabel("A sentence resolving");
  await page.getByRole("button", { name: "Again" }).and(page.locator(":enabled")).waitFor();
  assert.match(await demonstration.textContent(), /^Masks become drafts.*stays\.$/u);
  const masked = await watchFor(page, ".demo .cell.masked");
  await page.getByRole("button", { name: "Again" }).click();
  await masked();
  await page.getByLabel("Message", { exact: true }).blur();
  await page.keyboard.press("?");
  const dialogue = page.getByRole("dialog", { name: "Keyboard" });
  await dialogue.waitFor();
  await page.keyboard.press("Escape");
  await dialogue.waitFor({ state: "hidden" });
});

test("an answer streams as cells and ends as markdown", async () => {
  const resolving = await watchFor(page, '[aria-label="Answer resolving"] .cell.committed');
  await page.getByLabel("Message", { exact: true }).fill("How does a diffusion model write?");
  await page.keyboard.press("Enter");
  await resolving();
  const answer = page.getByLabel("Answer", { exact: true });
  await answer.waitFor();
  assert.equal(await answer.locator("strong").textContent(), "masks");
  await answer.locator(".hljs-keyword").first().waitFor();
  assert.match(await answer.locator(".meter").textContent(), /tok\/s · \d+ forwards · [\d.]+ tokens\/forward/u);
});

test("the scrubber's frames are the API's, and the last is the final text", async () => {
  const exchange = page.waitForResponse((response) => response.url().endsWith("/v1/chat/completions"));
  await page.getByLabel("Decoder").selectOption("edit");
  const answer = await say(page, "Once more, with edits");
  const contents = snapshots(await (await exchange).text());
  await answer.getByRole("button", { name: "Diffusion" }).click();
  const range = answer.getByLabel("Denoising step");
  const last = Number(await range.getAttribute("max"));
  const frames = [];
  for (let i = 0; i <= last; i++) {
    await showFrame(answer, i);
    frames.push(await shownText(answer));
  }
  assert.ok(last > 10);
  assert.deepEqual(withoutRepeats(frames), withoutRepeats(contents));
  assert.equal(frames.at(-1), contents.at(-1));
  await range.fill("3");
  await range.press("ArrowLeft");
  assert.equal(await range.inputValue(), "2");
});

test("an edited token flashes, and a cell explains itself to mouse and keyboard", async () => {
  const answer = page.getByLabel("Answer", { exact: true }).last();
  const range = answer.getByLabel("Denoising step");
  const last = Number(await range.getAttribute("max"));
  const flashes = [];
  for (let i = 0; i <= Math.min(last, 12); i++) {
    await showFrame(answer, i);
    flashes.push(await answer.locator(".cell.edited").count());
  }
  assert.ok(Math.max(...flashes) > 0);
  await showFrame(answer, last);
  await answer.locator(".cell").nth(4).hover();
  const card = answer.locator(".card");
  assert.match(await card.textContent(), /decided at forward \d+, committed at \d+confidence [\d.]+%/u);
  const others = await card.getByRole("listitem").allTextContents();
  assert.equal(others.length, 3);
  assert.match(others[1], /^[\d.]+% e$/u);
  await answer.locator(".cells").focus();
  await page.keyboard.press("Home");
  const first = await card.textContent();
  await page.keyboard.press("ArrowRight");
  assert.notEqual(await card.textContent(), first);
  await showFrame(answer, Math.floor(last / 2));
  await page.getByLabel("Decoder").selectOption("verify");
});

test("replay plays to the end by itself", async () => {
  const answer = page.getByLabel("Answer", { exact: true }).last();
  const range = answer.getByLabel("Denoising step");
  await range.fill("0");
  await answer.getByLabel("Replay speed").selectOption("4");
  await answer.getByRole("button", { name: "Replay" }).click();
  await page.waitForFunction(() =>
    [...document.querySelectorAll('input[type="range"]')].every((r) => r.value === r.max),
  );
  assert.equal(await range.inputValue(), await range.getAttribute("max"));
});

test("stop keeps the committed text and frees the page", async () => {
  await page.keyboard.press("Control+k");
  await page.getByLabel("Message", { exact: true }).fill("Explain diffusion, and take your time");
  await page.keyboard.press("Enter");
  await page.getByLabel("Answer resolving").locator(".cell.committed").nth(40).waitFor();
  const draft = page.getByLabel("Answer resolving").locator(".cell.draft", { hasText: /\w/u }).nth(2);
  await draft.hover();
  assert.match(await page.locator(".card").textContent(), /draftconfidence.*% e/u);
  await page.keyboard.press("Escape");
  const answer = page.getByLabel("Answer", { exact: true }).last();
  await answer.locator(".meter", { hasText: "stopped" }).waitFor();
  assert.match(await answer.locator(".markdown").textContent(), /^A diffusion/u);
  await page.getByRole("button", { name: "Send" }).waitFor();
});

test("Escape closes what lies over the page, and then stops the answer", async () => {
  await page.setViewportSize({ width: 390, height: 780 });
  await page.getByLabel("Message", { exact: true }).fill("Explain it again, and take your time");
  await page.keyboard.press("Enter");
  await page.getByLabel("Answer resolving").locator(".cell.committed").first().waitFor();
  await page.getByRole("button", { name: "Menu" }).press("Enter");
  await page.getByRole("button", { name: "Keyboard" }).press("Enter");
  const dialogue = page.getByRole("dialog", { name: "Keyboard" });
  await dialogue.waitFor();
  await page.keyboard.press("Escape");
  await dialogue.waitFor({ state: "hidden" });
  const close = page.getByRole("button", { name: "Close navigation" });
  assert.ok(await close.isVisible());
  await page.keyboard.press("Escape");
  await close.waitFor({ state: "hidden" });
  assert.equal(await page.getByRole("button", { name: "Stop" }).count(), 1);
  await page.keyboard.press("Escape");
  await page.getByRole("button", { name: "Send" }).waitFor();
  await page.setViewportSize({ width: 1280, height: 800 });
});

test("Escape leaves the editing of a message, and the focus goes back to its button", async () => {
  await page.keyboard.press("Control+k");
  await say(page, "echo: unchanged");
  await page.getByRole("button", { name: "Edit" }).press("Enter");
  await page.keyboard.type("not sent ");
  await page.keyboard.press("Escape");
  await page.getByLabel("You").getByText("echo: unchanged", { exact: true }).waitFor();
  assert.equal(await page.evaluate(() => document.activeElement.textContent), "Edit");
});

test("retry and edit make branches that can be walked", async () => {
  await page.keyboard.press("Control+k");
  const first = await say(page, "echo: one");
  await first.getByRole("button", { name: "Retry" }).click();
  await page.getByLabel("Branch 2 of 2").waitFor();
  await page.getByRole("button", { name: "Edit" }).click();
  await page.getByLabel("Edit message").fill("echo: two");
  await page.getByRole("button", { name: "Send as a branch" }).click();
  await page.getByLabel("Answer", { exact: true }).getByText("two").waitFor();
  await page.getByLabel("You").getByLabel("Previous branch").click();
  await page.getByLabel("Answer", { exact: true }).getByText("one").waitFor();
});

test("conversations and their recordings are there after a reload", async () => {
  await ready(page, stage.url);
  await page
    .getByRole("list", { name: "Conversations" })
    .getByRole("button", { name: "How does", exact: false })
    .first()
    .click();
  const answer = page.getByLabel("Answer", { exact: true }).first();
  await answer.getByRole("button", { name: "Diffusion" }).click();
  await answer.getByLabel("Denoising step").waitFor();
  assert.match(await shownText(answer), /^A diffusion model/u);
});

test("system prompt, settings and the plain stream reach the server", async () => {
  await page.keyboard.press("Control+k");
  await page.getByLabel("System prompt").fill("Be brief.");
  await page.getByLabel("Show the diffusion").uncheck();
  await page.getByLabel("Seed").fill("7");
  const asked = page.waitForRequest((request) => request.url().endsWith("/v1/chat/completions"));
  await say(page, "echo: plain");
  const body = (await asked).postDataJSON();
  assert.deepEqual(body.messages[0], { role: "system", content: "Be brief." });
  assert.equal(body.seed, 7);
  assert.equal(body.diffusing, undefined);
  await page.getByLabel("Show the diffusion").check();
});

test("a field that is entered right after Ctrl+K keeps the focus", async () => {
  await page.evaluate(() => {
    document.dispatchEvent(new KeyboardEvent("keydown", { key: "k", ctrlKey: true }));
    document.querySelector(".controls textarea").focus();
  });
  assert.ok(await keepsFocus(".controls textarea"));
});

test("a field that is entered right after the drawer has closed keeps the focus", async () => {
  await page.setViewportSize({ width: 390, height: 780 });
  await page.getByRole("button", { name: "Menu" }).click();
  await page.evaluate(async () => {
    document.querySelector("#sidebar .new").click();
    await Promise.resolve();
    document.querySelector("[data-composer]").focus();
  });
  assert.ok(await keepsFocus("[data-composer]"));
  await page.setViewportSize({ width: 1280, height: 800 });
});

test("from another panel, Ctrl+K and / lead into the composer", async () => {
  for (const keys of ["Control+k", "/"]) {
    await page.getByRole("link", { name: "Keys" }).click();
    await page.getByText("quicksilver serve --accounts").waitFor();
    await page.keyboard.press(keys);
    await page.waitForFunction(() => document.activeElement?.matches("[data-composer]"));
    assert.equal(await page.getByLabel("Message", { exact: true }).inputValue(), "");
  }
});

test("a phone's width and the dark theme work", async () => {
  await page.setViewportSize({ width: 390, height: 780 });
  await page.getByLabel("Theme").selectOption("dark", { force: true });
  await page.getByRole("button", { name: "Menu" }).click();
  await page.getByRole("button", { name: "New conversation" }).click();
  await say(page, "Tell me about phones");
  const overflow = await page.evaluate(() => document.documentElement.scrollWidth - window.innerWidth);
  assert.ok(overflow <= 0, `the page is ${overflow} px too wide`);
  const bottomOf = async (selector) => {
    const { y, height } = await page.locator(selector).boundingBox();
    return y + height;
  };
  const messages = await page.locator(".messages").boundingBox();
  assert.ok((await bottomOf(".bar")) <= messages.y && (await bottomOf(".controls")) <= messages.y);
  assert.ok((await bottomOf(".composer")) <= 780, "the composer is in reach");
  await page.setViewportSize({ width: 1280, height: 800 });
});

test("nothing went wrong on the way", () => {
  assert.deepEqual(stage.seen, { errors: [], violations: [], outbound: [], executions: [] });
});

/** Whether the element has the focus now and after the next frames, in which effects of the page run. */
function keepsFocus(selector) {
  return page.evaluate(async (wanted) => {
    const states = [];
    for (let i = 0; i < 4; i++) {
      states.push(document.activeElement?.matches(wanted));
      await new Promise((resolve) => requestAnimationFrame(() => setTimeout(resolve, 20)));
    }
    return states.every(Boolean);
  }, selector);
}

function snapshots(stream) {
  const events = stream.split("\n").filter((line) => line.startsWith("data: {"));
  const deltas = events.map((line) => JSON.parse(line.slice(6)).choices[0]?.delta.content);
  return deltas.filter((content) => typeof content === "string");
}

async function showFrame(answer, index) {
  await answer.getByLabel("Denoising step").fill(String(index));
  await answer.locator(`.cells[data-frame="${index}"]`).waitFor();
}

function withoutRepeats(texts) {
  return texts.filter((text, i) => text !== texts[i - 1]);
}

function shownText(answer) {
  return answer
    .locator(".cells .cell:not(.beyond)")
    .evaluateAll((cells) => cells.map((cell) => cell.textContent).join(""));
}
