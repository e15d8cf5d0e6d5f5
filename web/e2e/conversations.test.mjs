// Conversations and settings of the chat: the drawer, search, export and import, presets, the model's card, cURL and the
// pages of the documentation; at a desktop's and at a phone's width.

import assert from "node:assert/strict";
import { execFileSync } from "node:child_process";
import { readFileSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { after, before, test } from "node:test";
import { openStage, ready, say } from "./stage.mjs";

const WIDTHS = { desktop: 1280, phone: 390 };
const HOSTILE = '<img src=x onerror="alert(1)"><script>alert(2)</script>';
let stage, page;

before(async () => {
  stage = await openStage();
  page = stage.page;
  await stage.context.grantPermissions(["clipboard-read", "clipboard-write"]);
  await ready(page, stage.url);
});
after(async () => {
  await stage.close();
});

test("the drawer closes by its button, by Escape, outside of it and by the current panel", async () => {
  await page.setViewportSize({ width: WIDTHS.phone, height: 780 });
  const close = page.getByRole("button", { name: "Close navigation" });
  const ways = [
    () => close.click(),
    () => page.keyboard.press("Escape"),
    () => page.mouse.click(370, 400),
    () => page.getByRole("link", { name: "Chat", exact: true }).click(),
  ];
  for (const way of ways) {
    await page.getByRole("button", { name: "Menu" }).press("Enter");
    await close.waitFor();
    await page.waitForFunction(() => document.activeElement?.classList.contains("close"));
    await way();
    await close.waitFor({ state: "hidden" });
    await page.waitForFunction(() => document.activeElement?.classList.contains("menu"));
  }
});

for (const [device, width] of Object.entries(WIDTHS)) {
  test(`${device}: conversations are found by what was said in them`, async () => {
    await open(width);
    await say(page, `echo: quinces ${device}`);
    await newConversation();
    await say(page, `echo: medlars ${device}`);
    await openDrawer();
    const titles = page.getByRole("list", { name: "Conversations" }).locator(".title");
    await page.getByLabel("Search conversations").fill(`QUINCES ${device}`);
    assert.deepEqual(await titles.allTextContents(), [`echo: quinces ${device}`]);
    await page.getByLabel("Search conversations").fill("nowhere");
    await page.getByText("No conversation has these words.").waitFor();
    await page.getByLabel("Search conversations").fill(`quinces ${device}`);
    await page.keyboard.press("Tab");
    await page.keyboard.press("Enter");
    await page.getByLabel("Answer", { exact: true }).getByText(`quinces ${device}`).waitFor();
  });

  test(`${device}: export and import keep conversations, and markup in them stays text`, async () => {
    await open(width);
    await say(page, `echo: ${device} ${HOSTILE}`);
    await openDrawer();
    await page.getByLabel("Search conversations").fill(device);
    const download = page.waitForEvent("download");
    await page.getByRole("button", { name: "Export" }).press("Enter");
    const path = join(tmpdir(), `conversations-${device}-${process.pid}.json`);
    await (await download).saveAs(path);
    const archive = JSON.parse(readFileSync(path, "utf8"));
    assert.equal(archive.format, "quicksilver-conversations");
    const before = await titles().count();
    archive.conversations[0].title = HOSTILE;
    archive.conversations[0].system = HOSTILE;
    for (const message of Object.values(archive.conversations[0].messages)) message.reasoning = HOSTILE;
    writeFileSync(path, JSON.stringify(archive));
    await page.getByLabel("File of conversations").setInputFiles(path);
    await page.getByText(`${archive.conversations.length} imported.`).waitFor();
    assert.equal(await titles().count(), before + archive.conversations.length);
    await titles().filter({ hasText: "<script>" }).first().click();
    const answer = page.getByLabel("Answer", { exact: true }).last();
    assert.ok((await answer.textContent()).includes("<img src=x"));
    assert.equal(await page.locator("main img, main script, #sidebar img").count(), 0);
    await openDrawer();
    await page.getByLabel("File of conversations").setInputFiles({
      name: "broken.json",
      mimeType: "application/json",
      buffer: Buffer.from('{"format": "quicksilver-conversations", "version": 2}'),
    });
    await page.getByRole("alert").getByText("The file has version 2, not 1.").waitFor();
  });

  test(`${device}: a preset fills the system prompt, and an own one is kept over a reload`, async () => {
    await open(width);
    await page.getByLabel(/^Preset/u).selectOption("Brief");
    assert.match(await page.getByLabel("System prompt").inputValue(), /three sentences/u);
    await page.getByLabel("System prompt").fill(`Speak like a ${device}.`);
    await page.getByLabel("Name of the preset").fill(device);
    await page.keyboard.press("Enter");
    await open(width);
    await page.getByLabel(/^Preset/u).selectOption(device);
    assert.equal(await page.getByLabel("System prompt").inputValue(), `Speak like a ${device}.`);
    await page.getByRole("button", { name: `Delete preset ${device}` }).click();
    assert.equal(await page.getByLabel(/^Preset/u).inputValue(), "(unsaved)");
    await page.getByLabel(/^Preset/u).selectOption("None");
  });

  test(`${device}: aliases are folded into the model's card, which leads to the docs`, async () => {
    await open(width);
    assert.deepEqual(await page.getByLabel(/^Model/u).locator("option").allTextContents(), ["nano"]);
    const card = page.locator(".model-card");
    await card.locator("summary").first().press("Enter");
    assert.match(await card.textContent(), /16\.4K tokens.*\$0\.25 in, \$1 out/u);
    await card.getByText("Also answers to 5 other names").click();
    await card.getByText("mercury-2, mercury-2.5").waitFor();
    await card.getByRole("link", { name: "Decoders" }).click();
    await page.locator(".docs .markdown h3").first().waitFor();
    await page.locator('.docs .markdown a[href^="#/docs/"]').first().click();
    await page.waitForFunction(() => !location.hash.includes("decoding"));
    await page.locator(".docs .markdown h3").first().waitFor();
    const widest = await page.evaluate(() => document.documentElement.scrollWidth);
    assert.ok(widest <= width, `the page is ${widest} px wide`);
  });

  test(`${device}: an answer's request is copied as a command that works`, async () => {
    await open(width);
    const answer = await say(page, `echo: it's ${device}`);
    await answer.getByRole("button", { name: "Copy as cURL" }).press("Enter");
    await answer.getByText("Copied").waitFor();
    const command = await page.evaluate(() => navigator.clipboard.readText());
    assert.match(command, /^curl -N http:\/\/127\.0\.0\.1/u);
    const reply = execFileSync("sh", ["-c", command], { encoding: "utf8", stdio: ["ignore", "pipe", "ignore"] });
    assert.ok(reply.includes(`it's ${device}`) && reply.includes("[DONE]"));
  });
}

test("nothing went wrong on the way", () => {
  assert.deepEqual(stage.seen, { errors: [], violations: [], outbound: [], executions: [] });
});

async function open(width) {
  await page.setViewportSize({ width, height: 780 });
  await page.goto("about:blank");
  await ready(page, stage.url);
  const settings = page.locator("details.controls");
  if (!(await settings.evaluate((element) => element.open))) await settings.locator("summary").first().click();
}

function titles() {
  return page.getByRole("list", { name: "Conversations" }).locator(".title");
}

async function openDrawer() {
  const menu = page.getByRole("button", { name: "Menu" });
  if (await menu.isVisible()) await menu.click();
}

async function newConversation() {
  await page.keyboard.press("Control+k");
}
