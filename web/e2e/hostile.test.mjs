// Hostile text as answers, as messages and as titles: none of it may run, none may reach another host, and the policy
// may never even be asked. Afterwards every link that was rendered leads to the web or to mail.

import assert from "node:assert/strict";
import { after, before, test } from "node:test";
import { openStage, ready, say } from "./stage.mjs";
import { PAYLOADS } from "./payloads.mjs";

const BATCH = 25;
let stage, page;

before(async () => {
  stage = await openStage();
  page = stage.page;
  await ready(page, stage.url);
});
after(async () => {
  await stage.close();
});

test("there are enough payloads to mean something", () => {
  assert.ok(new Set(PAYLOADS).size >= 200);
});

test("no payload runs, as message, as title or as answer", { timeout: 240_000 }, async () => {
  for (const [i, payload] of PAYLOADS.entries()) {
    if (i % BATCH === 0) await page.getByRole("button", { name: "New conversation" }).click();
    await say(page, `echo: ${payload}`);
    if ((i + 1) % BATCH === 0) await lookAround();
  }
  await lookAround();
});

test("no payload runs as the title of a conversation", { timeout: 120_000 }, async () => {
  await page.evaluate(async (payloads) => {
    const database = await new Promise((resolve) => {
      const request = indexedDB.open("quicksilver");
      request.onsuccess = () => resolve(request.result);
    });
    const shelf = database.transaction("conversations", "readwrite").objectStore("conversations");
    for (const [i, title] of payloads.entries()) {
      const id = `hostile-${i}`;
      const message = {
        id: `m-${i}`,
        parent: null,
        role: "assistant",
        content: title,
        calls: [{ id: "c", type: "function", function: { name: title, arguments: title } }],
      };
      shelf.put({ id, title, system: title, updatedAt: i, leaf: message.id, messages: { [message.id]: message } }, id);
    }
    await new Promise((resolve) => (shelf.transaction.oncomplete = resolve));
    database.close();
  }, PAYLOADS);
  await ready(page, stage.url);
  const titles = page.getByRole("list", { name: "Conversations" }).locator(".title");
  await titles.nth(PAYLOADS.length - 1).waitFor();
  for (let i = 0; i < PAYLOADS.length; i += 20) {
    await titles.nth(i).click();
    await lookAround();
  }
});

test("nothing ran, nothing was blocked, nothing left", () => {
  assert.deepEqual(stage.seen, { errors: [], violations: [], outbound: [], executions: [] });
});

test("the watch would have noticed", { timeout: 30_000 }, async () => {
  await page.evaluate(() => {
    alert("seen");
    const image = document.createElement("img");
    image.src = "https://evil.example/p.png";
    document.body.append(image);
    try {
      document.body.insertAdjacentHTML("beforeend", "<b>x</b>");
    } catch {
      // The policy takes no string for markup.
    }
  });
  // The page reports asynchronously.
  while (stage.seen.violations.length < 2 || stage.seen.executions.length < 1) await page.waitForTimeout(20);
  assert.deepEqual(stage.seen.executions, ["seen"]);
  assert.equal(stage.seen.violations.length, 2);
  assert.equal(await page.locator("body > b").count(), 0);
});

/** Moves over the page, and checks what stands in it. */
async function lookAround() {
  const box = await page.locator(".messages").boundingBox();
  for (let y = 0; y < 5; y++) await page.mouse.move(box.x + 200, box.y + 40 + y * 60);
  const found = await page.evaluate(() => ({
    elements: [
      ...document.querySelectorAll(
        "main img, main iframe, main object, main embed, main form:not(.composer), main base, main style, main svg, main video",
      ),
    ].length,
    scripts: [...document.scripts].filter((script) => !script.src.startsWith(location.origin)).length,
    links: [...document.querySelectorAll(".markdown a")]
      .map((link) => link.href)
      .filter((href) => !/^(https?:\/\/|mailto:)/u.test(href)),
  }));
  assert.deepEqual(found, { elements: 0, scripts: 0, links: [] });
}
