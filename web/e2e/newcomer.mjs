// Times a newcomer's path: `make serve`, the address it prints, one click, the first answer resolved. Presses nothing
// but what the page shows. `make newcomer` runs it and prints the seconds; a file named behind it is written as well.

import { spawn } from "node:child_process";
import { mkdtempSync, rmSync, writeFileSync } from "node:fs";
import { cpus, tmpdir } from "node:os";
import { join } from "node:path";
import { openBrowser } from "./stage.mjs";

const ROOT = new URL("../..", import.meta.url).pathname;
const OPENER = "Why is the sky blue?";
const home = mkdtempSync(join(tmpdir(), "newcomer-"));
const started = performance.now();
const marks = {};
const mark = (name) => (marks[name] = Number(((performance.now() - started) / 1000).toFixed(2)));

const server = spawn("make", ["serve"], { cwd: ROOT, detached: true, stdio: ["ignore", "ignore", "pipe"] });
try {
  const url = await addressOf(server);
  mark("address_printed_s");
  const { context, page } = await openBrowser(home);
  await page.goto(url);
  const opener = page.getByRole("button", { name: OPENER });
  await opener.and(page.locator(":enabled")).waitFor();
  mark("page_usable_s");
  await opener.click();
  const clicked = performance.now();
  await page.getByLabel("Answer resolving").locator(".cell.committed").first().waitFor();
  mark("first_committed_s");
  const answer = page.getByLabel("Answer", { exact: true });
  await answer.waitFor({ timeout: 120_000 });
  mark("resolved_s");
  const click_to_resolved_s = Number(((performance.now() - clicked) / 1000).toFixed(2));
  const text = await answer.locator(".markdown").textContent();
  const meter = await answer.locator(".meter").textContent();
  await context.close();
  report({ cpu: cpus()[0]?.model, cores: cpus().length, ...marks, click_to_resolved_s, answer: text.trim(), meter });
} finally {
  process.kill(-server.pid, "SIGINT");
  rmSync(home, { recursive: true, force: true });
}

/** The server names its page when it is ready; what it says goes on to the terminal. */
function addressOf(child) {
  let said = "";
  return new Promise((resolve, reject) => {
    child.once("exit", (code) => reject(new Error(`make serve ended with ${code}`)));
    child.stderr.on("data", (bytes) => {
      process.stderr.write(bytes);
      said += bytes;
      const found = /playground\s+(http:\S+)/u.exec(said);
      if (found) resolve(found[1]);
    });
  });
}

function report(figures) {
  const text = JSON.stringify({ date: new Date().toISOString().slice(0, 10), ...figures }, null, 1);
  console.log(text);
  if (process.argv[2]) writeFileSync(process.argv[2], `${text}\n`);
}
