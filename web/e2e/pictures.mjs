// Takes the playground's pictures for the documentation with the real nano: `make pictures`. The two pictures of accounts
// (usage, keys) are taken by the tests instead, which have an accounts database: PICTURES=1 npm run e2e.

import { spawn } from "node:child_process";
import { mkdtempSync, rmSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { fileURLToPath } from "node:url";
import { openBrowser, openPanel, ready, say } from "./stage.mjs";

const ROOT = fileURLToPath(new URL("../..", import.meta.url));
const FOLDER = join(ROOT, "docs/images/");
const PYTHON = process.env.PYTHON ?? join(ROOT, ".venv/bin/python");
const PROMPT = "Write a Python function that returns the n-th Fibonacci number.";
const PATIENCE = { timeout: 180_000 };

/** A screenshot from inside a test, when PICTURES is set. */
export async function picture(page, name) {
  if (process.env.PICTURES) await shoot(page, name);
}

function shoot(page, name) {
  return page.screenshot({ path: `${FOLDER}${name}.png`, scale: "css" });
}

async function main() {
  const home = mkdtempSync(join(tmpdir(), "pictures-"));
  const program = ["-c", "from quicksilver.cli import main; main()", "serve", "--model", "nano", "--port", "8590"];
  const server = spawn(PYTHON, program, { cwd: ROOT, stdio: ["ignore", "ignore", "pipe"] });
  try {
    const url = await addressOf(server);
    const { context, page } = await openBrowser(home);
    await takeChat(page, url);
    await takePanels(page, url);
    await takePhone(page, url);
    await context.close();
  } finally {
    server.kill("SIGINT");
    rmSync(home, { recursive: true, force: true });
  }
}

function addressOf(server) {
  let output = "";
  return new Promise((resolve, reject) => {
    server.once("exit", (code) => reject(new Error(`the server ended with ${code}: ${output}`)));
    server.stderr.on("data", (bytes) => {
      output += bytes;
      const found = /playground\s+(http:\S+)/u.exec(output);
      if (found) resolve(found[1].replace(/\/$/u, ""));
    });
  });
}

async function takeChat(page, url) {
  await ready(page, url);
  await shoot(page, "playground-welcome");
  await say(page, "Hello");
  await page.keyboard.press("Control+k");
  await page.getByLabel("Message", { exact: true }).fill(PROMPT);
  await page.keyboard.press("Enter");
  await page.waitForFunction(isHalfResolved, undefined, { polling: 10, ...PATIENCE });
  await shoot(page, "playground-resolving");
  const answer = page.getByLabel("Answer", { exact: true }).last();
  await answer.waitFor(PATIENCE);
  await answer.getByRole("button", { name: "Diffusion" }).click();
  const range = answer.getByLabel("Denoising step");
  await range.fill(String(Math.floor(Number(await range.getAttribute("max")) / 2)));
  await answer.locator(".cell").nth(4).hover();
  await shoot(page, "playground-scrubber");
}

/** Runs in the page: some tokens are final, and the canvas after them has drafts. */
function isHalfResolved() {
  const count = (kind) => document.querySelectorAll(`[aria-label="Answer resolving"] .cell.${kind}`).length;
  return count("committed") >= 6 && count("draft") >= 3;
}

async function takePanels(page, url) {
  await openPanel(page, url, "structured");
  await page.getByRole("button", { name: "Run" }).click();
  await page.getByText("Valid JSON.").waitFor(PATIENCE);
  await shoot(page, "playground-structured");
  await openPanel(page, url, "code");
  await page.getByLabel("files.py").waitFor(PATIENCE);
  await page.getByRole("button", { name: "Predict next edit" }).click();
  await page.locator(".qs-added").first().waitFor(PATIENCE);
  await shoot(page, "playground-editor");
  await openPanel(page, url, "race");
  await page.getByRole("button", { name: "Race", exact: true }).click();
  await page.locator(".verdict").waitFor(PATIENCE);
  await page.locator(".lane.home").nth(1).waitFor(PATIENCE);
  await shoot(page, "playground-race");
}

async function takePhone(page, url) {
  await page.setViewportSize({ width: 390, height: 780 });
  await ready(page, `${url}/#/chat`);
  await page.getByRole("button", { name: "Menu" }).click();
  await page.getByRole("button", { name: "New conversation" }).click();
  await say(page, "Why is the sky blue?");
  await shoot(page, "playground-phone");
}

if (process.argv[1] === fileURLToPath(import.meta.url)) await main();
