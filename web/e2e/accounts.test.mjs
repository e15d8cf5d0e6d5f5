// The playground in front of a server that asks for keys: the caller's account, usage out of the server's books, keys
// made, rotated and revoked; and no key anywhere but in the page's memory.

import assert from "node:assert/strict";
import { after, before, test } from "node:test";
import { openStage, say } from "./stage.mjs";
import { picture } from "./pictures.mjs";

const HOSTILE = '<img src=x onerror="alert(1)">';
let stage, page;
const secrets = [];
const addresses = [];

before(async () => {
  stage = await openStage("accounts");
  page = stage.page;
  secrets.push(stage.key);
  stage.context.on("request", (request) => addresses.push(request.url()));
});
after(async () => {
  await stage.close();
});

test("without a key a card asks for it in place of the panel, on a phone too", async () => {
  await page.goto(stage.url);
  const card = page.getByRole("region", { name: "This server needs a key" });
  await card.waitFor();
  assert.equal(await page.getByRole("alert").count(), 0, "nothing has failed yet");
  assert.equal(await page.getByLabel("Message", { exact: true }).count(), 0);
  await page.setViewportSize({ width: 390, height: 780 });
  const box = await card.boundingBox();
  assert.ok(box.x >= 0 && box.x + box.width <= 390);
  await page.setViewportSize({ width: 1280, height: 800 });
  await card.getByLabel("API key").fill("qs-wrong");
  await page.keyboard.press("Enter");
  await card.getByRole("alert").waitFor();
  await card.getByLabel("API key").fill(stage.key);
  await page.keyboard.press("Enter");
  await page.getByLabel("Message", { exact: true }).waitFor();
  await page.goto(`${stage.url}/#/keys`);
  const facts = page.getByLabel("This key", { exact: true });
  await facts.getByText("demo, acme").waitFor();
  assert.match(await facts.textContent(), /inference.*1,000,000.*not limited/u);
  assert.equal(await page.getByRole("alert").count(), 0);
});

test("what the chat costs stands in the server's books", async () => {
  await page.getByRole("link", { name: "Chat" }).click();
  const answer = await say(page, "echo: a charge");
  const [, tokens] = /^(\d+) tokens/u.exec(await answer.locator(".meter").textContent());
  const [, prompt] = /(\d+) in/u.exec(await answer.locator(".meter").textContent());
  await page.getByRole("link", { name: "Usage" }).click();
  await page.getByLabel("Requests: 1 in all").waitFor();
  await page.getByLabel(`Tokens: ${Number(tokens) + Number(prompt)} in all`).waitFor();
  await page.getByLabel(`Cost: ${Number(tokens) + Number(prompt)} credits in all`).waitFor();
  assert.match(await page.locator(".lead").textContent(), /project demo; 999,\d+ credits are left/u);
  await page.getByLabel("Last").selectOption("30 days");
  await page.getByLabel("Requests: 1 in all").waitFor();
  await picture(page, "playground-usage");
  await page.getByLabel("Whose usage").selectOption("true");
  await page.locator("tbody tr").waitFor();
});

test("a key is made with bounds of its own, and its secret is shown once", async () => {
  await page.getByRole("link", { name: "Keys" }).click();
  await page.getByText("None yet.").waitFor();
  await makeKey("laptop");
  const row = page.getByRole("row", { name: /laptop/u });
  assert.match(await row.textContent(), /inference, usage0 of 50/u);
  await picture(page, "playground-keys");
  await page.getByRole("button", { name: "Done" }).click();
  assert.equal(await page.getByText(secrets.at(-1)).count(), 0);
  assert.equal((await call(secrets.at(-1))).status, 200);
});

test("rotating ends the old secret, revoking the key", async () => {
  const old = secrets.at(-1);
  await page.getByRole("button", { name: "Rotate laptop" }).click();
  secrets.push(await page.locator(".secret code").textContent());
  assert.equal((await call(secrets.at(-1))).status, 200);
  await ended(old);
  await page.getByRole("button", { name: "Revoke laptop" }).click();
  await page.getByRole("button", { name: "Keep" }).click();
  await page.getByRole("button", { name: "Revoke laptop" }).click();
  await page.getByRole("button", { name: "Really revoke laptop" }).click();
  await page.getByRole("cell", { name: "revoked" }).waitFor();
  await ended(secrets.at(-1));
});

test("a hostile name stays a name", async () => {
  await makeKey(HOSTILE);
  await page.getByRole("cell", { name: HOSTILE, exact: true }).waitFor();
  assert.equal(await page.locator("main img").count(), 0);
});

test("no key is stored, or part of an address, and a reload forgets the one that was given", async () => {
  const kept = await page.evaluate(everythingKept);
  for (const secret of secrets) {
    assert.ok(secret.length > 20);
    assert.ok(!kept.includes(secret));
    assert.ok(!addresses.some((address) => address.includes(secret)));
  }
  await page.reload();
  await page.getByLabel("API key").waitFor();
  assert.equal(await page.getByLabel("This key", { exact: true }).count(), 0);
});

test("nothing went wrong on the way", () => {
  const { errors, ...rest } = stage.seen;
  assert.deepEqual(rest, { violations: [], outbound: [], executions: [] });
  assert.deepEqual(
    errors.filter((text) => !text.includes("401")),
    [],
  );
});

async function makeKey(name) {
  await page.getByLabel("Name", { exact: true }).fill(name);
  await page.getByLabel("Budget in credits").fill("50");
  await page.getByRole("button", { name: "Make key" }).click();
  await page.locator(".secret", { hasText: name }).waitFor();
  secrets.push(await page.locator(".secret code").textContent());
}

function call(secret) {
  return fetch(`${stage.url}/v1/models`, { headers: { authorization: `Bearer ${secret}` } });
}

/** A secret that was taken back is refused by every process within a second or so. */
async function ended(secret) {
  const deadline = Date.now() + 10_000;
  while ((await call(secret)).status !== 401) assert.ok(Date.now() < deadline, "the secret still works");
}

/** Storage of every kind, cookies and the address, as text. */
async function everythingKept() {
  const open = (name) =>
    new Promise((resolve) => {
      const request = indexedDB.open(name);
      request.onsuccess = () => resolve(request.result);
    });
  const rows = (database, shelf) =>
    new Promise((resolve) => {
      const request = database.transaction(shelf).objectStore(shelf).getAll();
      request.onsuccess = () => resolve(request.result);
    });
  const found = [];
  for (const { name } of await indexedDB.databases()) {
    const database = await open(name);
    for (const shelf of database.objectStoreNames) found.push(await rows(database, shelf));
    database.close();
  }
  const caches = await window.caches?.keys();
  return JSON.stringify([{ ...localStorage }, { ...sessionStorage }, document.cookie, location.href, caches, found]);
}
