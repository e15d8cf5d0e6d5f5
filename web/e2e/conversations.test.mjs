// Conversations and settings of the chat: the drawer, search, export and import, presets, the model's card, cURL and the
// pages of the documentation; at a desktop's and at a phone's width.

import assert from "node:assert/strict";
import { execFileSync } from "node:child_process";
import { readFileSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { after, before, test } from "node:test";
import { layoutFaults, openStage, ready, say, tabOrder, watchFor } from "./stage.mjs";

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

  test(`${device}: text files are dropped or chosen, listed, removed, and sent below the message`, async () => {
    await open(width);
    await drop({ name: "hello.py", text: "print('```')\n" });
    await listed(["hello.py 13 B"]);
    await choose({ name: "notes.txt", text: "remember" }, { name: "spare.txt", text: "spare" });
    await listed(["hello.py 13 B", "notes.txt 8 B", "spare.txt 5 B"]);
    await page.getByRole("button", { name: "Remove spare.txt" }).press("Enter");
    await listed(["hello.py 13 B", "notes.txt 8 B"]);
    const message = page.getByLabel("Message", { exact: true });
    assert.ok(await message.evaluate((element) => element === document.activeElement));
    assert.deepEqual(await tabOrder(page, 3), ["Remove hello.py", "Remove notes.txt", "Attach files"]);
    assert.deepEqual(await layoutFaults(page), []);
    const asked = page.waitForRequest((request) => request.url().endsWith("/v1/chat/completions"));
    await say(page, `echo: ${device}`);
    const { content } = (await asked).postDataJSON().messages.at(-1);
    const files = "File: hello.py\n````py\nprint('```')\n````\n\nFile: notes.txt\n```txt\nremember\n```";
    assert.equal(content, `echo: ${device}\n\n${files}`);
    assert.equal(await page.getByRole("list", { name: "Attached files" }).count(), 0);
  });

  test(`${device}: a file that is too large or no text is refused with the reason`, async () => {
    await open(width);
    await choose({ name: "large.log", text: "x".repeat(1_500_000) });
    const alert = page.locator(".composer").getByRole("alert");
    await alert.getByText("large.log has 1.5 MB. A message takes 256 kB of files: attach a part of it.").waitFor();
    await drop({ name: "photo.png", text: "\0\u0001" });
    await alert.getByText("photo.png is not a text file in UTF-8. Convert it to text first.").waitFor();
    assert.ok(await page.getByRole("button", { name: "Send" }).isDisabled());
    assert.deepEqual(await layoutFaults(page), []);
    await choose({ name: "long.txt", text: "word ".repeat(1000) });
    await alert.waitFor({ state: "detached" });
    await say(page, "echo: folded");
    const said = page.getByLabel("You").last().locator("details");
    assert.match(await said.locator("summary").textContent(), /^echo: folded.*5K characters$/su);
  });

  test(`${device}: an answer's request is copied as a command that works`, async () => {
    await open(width);
    const answer = await say(page, `echo: it's ${device}`);
    const copied = await watchFor(page, "article button", "Copied");
    await answer.getByRole("button", { name: "Copy as cURL" }).press("Enter");
    await copied();
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

/** Drags a file over the page and drops it there. */
async function drop({ name, text }) {
  const dataTransfer = await page.evaluateHandle(([fileName, content]) => {
    const transfer = new DataTransfer();
    transfer.items.add(new File([content], fileName));
    return transfer;
  }, [name, text]);
  await page.dispatchEvent(".messages", "dragover", { dataTransfer });
  await page.locator(".composer .box.over").waitFor();
  await page.dispatchEvent(".messages", "drop", { dataTransfer });
  await page.locator(".composer .box.over").waitFor({ state: "detached" });
}

/** Opens the file dialogue with the keyboard and chooses files. */
async function choose(...files) {
  const dialogue = page.waitForEvent("filechooser");
  await page.getByRole("button", { name: "Attach files" }).press("Enter");
  const chosen = files.map(({ name, text }) => ({ name, mimeType: "text/plain", buffer: Buffer.from(text) }));
  await (await dialogue).setFiles(chosen);
}

/** Waits until the attached files are these, each with its size. */
async function listed(names) {
  const wanted = names.map((name) => `${name}×`).join("|");
  await page.waitForFunction((text) => {
    const items = [...document.querySelectorAll(".files li")].map((item) => item.textContent);
    return items.join("|") === text;
  }, wanted);
}

async function newConversation() {
  await page.keyboard.press("Control+k");
}
