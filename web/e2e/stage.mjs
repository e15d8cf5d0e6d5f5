// A live server around the scripted engine, and a real Chromium in front of it. Every test file has its own pair.
// Watches what must never happen: script errors, policy violations, and requests to any other origin.

import { spawn } from "node:child_process";
import { mkdtempSync, rmSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { chromium } from "playwright-core";
import { findChromium } from "./chromium.mjs";

const ROOT = new URL("../..", import.meta.url).pathname;
const PYTHON = process.env.PYTHON ?? join(ROOT, ".venv/bin/python");
const FLAGS = [
  "--headless",
  "--no-sandbox",
  "--disable-gpu",
  "--disable-quic",
  "--no-first-run",
  "--disable-background-networking",
  "--disable-component-update",
  "--disable-sync",
  // No name leads anywhere: what works here works offline.
  "--host-resolver-rules=MAP * ~NOTFOUND, EXCLUDE 127.0.0.1",
];

/** `modes` is handed to the server: `accounts` has it ask for keys. */
export async function openStage(...modes) {
  const home = mkdtempSync(join(tmpdir(), "playground-"));
  const { server, url, key } = await startServer(home, modes);
  const { context, page } = await openBrowser(home);
  const seen = await watch(context, page, url);
  const close = async () => {
    await context.close();
    const ended = new Promise((resolve) => server.once("exit", resolve));
    server.kill();
    await ended;
    rmSync(home, { recursive: true, force: true });
  };
  return { page, context, url, key, seen, close };
}

/** A fresh profile under `home`. */
export async function openBrowser(home) {
  const context = await chromium.launchPersistentContext(join(home, "profile"), {
    ...(await findChromium()),
    args: FLAGS,
    viewport: { width: 1280, height: 800 },
  });
  return { context, page: context.pages()[0] ?? (await context.newPage()) };
}

function startServer(home, modes) {
  const server = spawn(PYTHON, ["-m", "tests.web.playground_app", home, ...modes], {
    cwd: ROOT,
    stdio: ["ignore", "pipe", "inherit"],
  });
  return new Promise((resolve, reject) => {
    server.stdout.once("data", (line) => {
      const [url, key] = String(line).trim().split(" ");
      resolve({ server, url, key });
    });
    server.once("exit", (code) => reject(new Error(`the server ended with ${code}`)));
  });
}

async function watch(context, page, url) {
  const seen = { errors: [], violations: [], outbound: [], executions: [] };
  await context.exposeBinding("reportViolation", (_, what) => seen.violations.push(what));
  await context.exposeBinding("executed", (_, what) => seen.executions.push(what));
  await context.addInitScript(() => {
    document.addEventListener("securitypolicyviolation", (event) => {
      void window.reportViolation(`${event.violatedDirective} ${event.blockedURI} ${event.sample}`);
    });
    window.alert = window.prompt = window.confirm = (what) => void window.executed(String(what));
  });
  page.on("pageerror", (error) => seen.errors.push(error.message));
  page.on("console", (message) => {
    if (message.type() === "error") seen.errors.push(message.text());
  });
  page.on("dialog", (dialog) => {
    seen.executions.push(dialog.message());
    void dialog.dismiss();
  });
  context.on("request", (request) => {
    if (!request.url().startsWith(url) && !/^(blob|data|about):/u.test(request.url()))
      seen.outbound.push(request.url());
  });
  return seen;
}

/** Sends a message in the chat and waits until its answer has ended. */
export async function say(page, text) {
  const answers = page.locator('article[aria-label="Answer"]');
  const before = await answers.count();
  await page.getByLabel("Message", { exact: true }).fill(text);
  await page.keyboard.press("Enter");
  await answers.nth(before).waitFor();
  return answers.nth(before);
}

export async function openPanel(page, url, panel) {
  await page.goto(`${url}/#/${panel}`);
  await page.waitForFunction(() => document.querySelectorAll("main select option, main button").length > 0);
}

export async function ready(page, url) {
  await page.goto(url);
  await page.locator("select option", { hasText: "nano" }).first().waitFor({ state: "attached" });
}

/**
 * Notes from now on whether an element with this text is on the page; returns what waits for it. Asking from outside of
 * the page, at intervals, misses an element that is there for less than a second.
 */
export async function watchFor(page, selector, text = "") {
  await page.evaluate(
    ([wanted, words]) => {
      window.isSighted = false;
      const observer = new MutationObserver(() => {
        const found = [...document.querySelectorAll(wanted)];
        if (!found.some((element) => element.textContent.includes(words))) return;
        window.isSighted = true;
        observer.disconnect();
      });
      observer.observe(document.body, { subtree: true, childList: true, characterData: true, attributes: true });
    },
    [selector, text],
  );
  return () => page.waitForFunction(() => window.isSighted);
}

/** What is wrong with the layout: parts that scroll sideways, and controls that cannot be scrolled into view and pressed. */
export function layoutFaults(page) {
  return page.evaluate(() => {
    const nameOf = (element) => element.outerHTML.slice(0, 120);
    const frames = [document.documentElement, ...document.querySelectorAll("main, main .panel, main .messages")];
    const faults = frames.filter((each) => each.scrollWidth > each.clientWidth).map((each) => `too wide: ${nameOf(each)}`);
    const controls = document.querySelectorAll("main :is(button, input, select, textarea, summary, a[href], [tabindex='0'])");
    for (const control of controls) {
      if (!control.checkVisibility()) continue;
      control.scrollIntoView({ block: "center", inline: "nearest" });
      const { left, right, top, bottom } = control.getBoundingClientRect();
      const hit = document.elementFromPoint((left + right) / 2, (top + bottom) / 2);
      if (left < 0 || right > window.innerWidth) faults.push(`outside: ${nameOf(control)}`);
      else if (!control.contains(hit)) faults.push(`covered: ${nameOf(control)}`);
    }
    return faults;
  });
}

/** The labels of the controls that Tab reaches from the one that is focused, up to `num`. */
export async function tabOrder(page, num) {
  const labels = [];
  for (let i = 0; i < num; i++) {
    await page.keyboard.press("Tab");
    labels.push(
      await page.evaluate(() => {
        const focused = document.activeElement;
        const texts = [...(focused.labels?.[0] ?? focused).childNodes].filter((node) => node.nodeType === Node.TEXT_NODE);
        return (focused.getAttribute("aria-label") ?? texts.map((node) => node.data).join("")).trim();
      }),
    );
  }
  return labels;
}
