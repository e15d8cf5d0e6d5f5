// Every panel beside the chat, in a real browser against a live server.

import assert from "node:assert/strict";
import { after, afterEach, before, test } from "node:test";
import { layoutFaults, openPanel, openStage, ready, tabOrder } from "./stage.mjs";

const WIDTHS = { desktop: 1280, phone: 390 };

const WORDS = "one two three four five six seven eight nine ten eleven twelve thirteen fourteen fifteen";
let stage, page;

before(async () => {
  stage = await openStage();
  page = stage.page;
  await ready(page, stage.url);
});
after(async () => {
  await stage.close();
});
afterEach(async () => {
  await page.setViewportSize({ width: WIDTHS.desktop, height: 800 });
});

test("structured output: a broken schema is refused here, a good one is filled and coloured", async () => {
  await openPanel(page, stage.url, "structured");
  const schema = page.getByLabel("JSON Schema");
  const good = await schema.inputValue();
  await schema.fill("{");
  await page.getByRole("button", { name: "Run" }).click();
  await page.getByRole("alert").waitFor();
  await schema.fill(good);
  await page.getByRole("button", { name: "Run" }).click();
  await page.getByText("Valid JSON.").waitFor();
  const forced = await page.locator(".cell.forced").allTextContents();
  assert.equal(forced.join("").slice(0, 10), '{"name": "');
  const all = await page.locator(".cells .cell").allTextContents();
  assert.deepEqual(JSON.parse(all.join("")), { name: "Ada", age: 36, city: "Oslo" });
});

for (const [device, width] of Object.entries(WIDTHS)) {
  test(`${device}: fields are added by keyboard, and the schema that they make is sent`, async () => {
    await openFresh("structured", width);
    const schema = page.getByLabel("JSON Schema");
    const fields = page.getByRole("region", { name: "Fields of the answer" });
    const row = (place) => fields.getByRole("group", { name: `Field ${place}`, exact: true });
    assert.equal(await row(3).getByLabel("Values").first().inputValue(), "Paris, Oslo, Lima");
    await page.getByRole("button", { name: "Remove field age" }).press("Enter");
    await page.keyboard.press("Enter");
    await row(3).getByText("Give the field a name.").waitFor();
    await page.keyboard.type("orders");
    assert.deepEqual(await tabOrder(page, 3), ["Type", "Required", "Remove field orders"]);
    await row(3).getByLabel("Type").selectOption("array");
    await row(3).getByLabel("Items").selectOption("object");
    await row(3).getByLabel("Required").first().uncheck();
    await page.getByRole("button", { name: "Add field to orders" }).press("Enter");
    await page.keyboard.type("size");
    await row("3.1").getByLabel("Type").selectOption("enum");
    await row("3.1").getByText("List the values, separated by commas.").waitFor();
    await row("3.1").getByLabel("Values").fill("small, large");
    const orders = { properties: { size: { enum: ["small", "large"] } }, required: ["size"] };
    const wanted = {
      type: "object",
      properties: {
        name: { type: "string" },
        city: { enum: ["Paris", "Oslo", "Lima"] },
        orders: { type: "array", items: { type: "object", ...orders, additionalProperties: false } },
      },
      required: ["name", "city"],
      additionalProperties: false,
    };
    assert.deepEqual(JSON.parse(await schema.inputValue()), wanted);
    assert.deepEqual(await layoutFaults(page), []);
    const asked = page.waitForRequest((request) => request.url().endsWith("/v1/chat/completions"));
    await page.getByRole("button", { name: "Run" }).click();
    assert.deepEqual((await asked).postDataJSON().response_format.json_schema.schema, wanted);
  });

  test(`${device}: the schema is edited as text, and what is wrong with it is said`, async () => {
    await openFresh("structured", width);
    const schema = page.getByLabel("JSON Schema");
    const alert = page.getByRole("alert");
    await schema.fill('{\n  "type": object }');
    await alert.getByText(/not valid JSON/u).waitFor();
    await page.getByText("The text is not a schema.").waitFor();
    await page.getByRole("button", { name: "Run" }).click();
    assert.ok(await schema.evaluate((element) => element === document.activeElement));
    await schema.fill("[]");
    await alert.getByText("A schema is a JSON object").waitFor();
    await schema.fill('{"type": "object", "properties": {"a": {"type": "string", "minLength": 2}}}');
    await page.getByText("The schema has parts that fields do not show.").waitFor();
    await schema.fill('{"type": "strin"}');
    await page.getByRole("button", { name: "Run" }).click();
    await page.getByLabel("Result").getByRole("alert").getByText("`type` is malformed").waitFor();
    await page.getByRole("button", { name: "Start again with fields" }).press("Enter");
    assert.deepEqual(JSON.parse(await schema.inputValue()).properties, {});
    await page.getByRole("button", { name: "Add field" }).click();
    await page.keyboard.type("a");
    await schema.fill((await schema.inputValue()).replaceAll('"a"', '"b"'));
    assert.equal(await page.getByRole("group", { name: "Field 1" }).getByLabel("Name").inputValue(), "b");
    assert.deepEqual(await layoutFaults(page), []);
  });

  test(`${device}: race and compare fit, and every control is in reach`, async () => {
    await openFresh("race", width);
    assert.deepEqual(await layoutFaults(page), []);
    await page.getByLabel("Prompt").fill(`echo: ${WORDS}`);
    await page.getByRole("button", { name: "Race", exact: true }).press("Enter");
    await page.locator(".verdict").waitFor({ timeout: 30_000 });
    await page.locator(".lane.home").nth(1).waitFor({ timeout: 30_000 });
    await explainLastCell();
    assert.deepEqual(await layoutFaults(page), []);
    await page.getByLabel("Prompt").focus();
    assert.deepEqual(await tabOrder(page, 2), ["Race", "Replay side by side"]);
    await openFresh("compare", width);
    assert.deepEqual(await layoutFaults(page), []);
    await page.getByLabel("Prompt").fill(`echo: ${WORDS}`);
    const pickers = ["Left model", "Left decoder", "Right model", "Right decoder"];
    assert.deepEqual(await tabOrder(page, 5), [...pickers, "Compare"]);
    await page.keyboard.press("Enter");
    await page.locator(".verdict").waitFor({ timeout: 30_000 });
    await explainLastCell();
    assert.deepEqual(await layoutFaults(page), []);
  });

  test(`${device}: Escape stops a race and a comparison`, async () => {
    for (const [panel, button] of [["race", "Race"], ["compare", "Compare"]]) {
      await openFresh(panel, width);
      await page.getByLabel("Prompt").fill("Explain masks, and take your time");
      await page.getByRole("button", { name: button, exact: true }).press("Enter");
      await page.getByRole("button", { name: "Stop" }).waitFor();
      await page.keyboard.press("Escape");
      await page.getByRole("button", { name: "Stop" }).waitFor({ state: "detached" });
      assert.equal(await page.locator(".verdict").count(), 0);
    }
  });
}

test("tools: the call is shown, answered, and used", async () => {
  await openPanel(page, stage.url, "tools");
  await page.getByRole("button", { name: "Run" }).click();
  const call = page.getByLabel("Call of get_weather");
  await call.waitFor();
  assert.match(await call.textContent(), /"city":\s*"Oslo"/u);
  await page.getByLabel("Result of get_weather").fill("7 degrees");
  const asked = page.waitForRequest((request) => request.url().endsWith("/v1/chat/completions"));
  await page.getByRole("button", { name: "Send result" }).click();
  const { messages } = (await asked).postDataJSON();
  assert.equal(messages.at(-1).tool_call_id, messages.at(-2).tool_calls[0].id);
  await page.locator(".turn").nth(3).getByText("It is 7 degrees in Oslo.").waitFor();
  assert.equal(await page.locator(".turn").count(), 4);
});

test("race: both lanes end with clocks and forward counts", async () => {
  await openPanel(page, stage.url, "race");
  await page.getByLabel("Prompt").fill("Say something about masks");
  const asked = [];
  page.on("request", (request) => asked.push(request.url()));
  const states = await watchLanes();
  await page.getByRole("button", { name: "Race", exact: true }).click();
  await page.locator(".verdict").waitFor({ timeout: 30_000 });
  assert.equal(asked.length, 4, "both lanes are warmed up, both run");
  const meters = await page.locator(".lane .meter").allTextContents();
  const [diffusion, ar] = meters.map((text) => Number(/(\d+) forwards/u.exec(text)?.[1]));
  assert.ok(diffusion > 0 && ar > 4 * diffusion, `${diffusion} and ${ar} forwards`);
  assert.match(await page.locator(".verdict").textContent(), /identical/u);
  await page.locator(".lane.home").nth(1).waitFor({ timeout: 30_000 });
  const seen = await states();
  assert.ok(seen.some(([, { isWaiting }]) => isWaiting), "the second lane waits for its turn");
  const replayed = seen.filter(([{ isReplay }]) => isReplay);
  assert.ok(!replayed[0][0].isHome && !replayed[0][1].isHome, "both lanes start at once");
  const [ahead, behind] = replayed.find(([{ isHome }]) => isHome);
  assert.ok(ahead.tokens > behind.tokens && !behind.isHome, "diffusion is home first");
  const counts = await page.locator(".lane .counts").allTextContents();
  assert.deepEqual(counts, [`${diffusion} forwards ${ahead.tokens} tokens`, `${ar} forwards ${ahead.tokens} tokens`]);
  const committed = await page.locator(".lane .cell.committed").count();
  assert.equal(committed, 2 * ahead.tokens);
});

test("compare: two decoders answer one prompt side by side, and each lane names its own", async () => {
  await openPanel(page, stage.url, "compare");
  await page.getByLabel("Prompt").fill("Say something about masks");
  await page.getByLabel("Left decoder").selectOption("ar");
  await page.getByLabel("Right decoder").selectOption("edit");
  await page.getByRole("button", { name: "Compare", exact: true }).click();
  await page.locator(".verdict").waitFor();
  assert.match(await page.locator(".verdict").textContent(), /identical/u);
  const titles = await page.locator(".lane h2").allTextContents();
  assert.deepEqual(titles, ["Left: nano, ar", "Right: nano, edit"]);
  const [ar, edit] = (await page.locator(".lane .counts strong:first-child").allTextContents()).map(Number);
  assert.ok(ar > edit && edit > 0, `${ar} and ${edit} forwards`);
});

test("the API panel prints what was sent", async () => {
  await page.goto(`${stage.url}/#/api`);
  const code = page.locator(".code pre");
  await code.waitFor();
  assert.match(await code.textContent(), /Say something about masks/u);
  for (const name of ["Python", "JavaScript", "curl"]) {
    await page.getByLabel(name, { exact: true }).check();
    assert.match(await code.textContent(), /\/v1\/chat\/completions/u);
  }
});

test("usage adds up what this browser asked for", async () => {
  await page.goto(`${stage.url}/#/usage`);
  await page.locator("tbody tr").first().waitFor();
  const kinds = await page.locator("tbody tr td:nth-child(2)").allTextContents();
  assert.deepEqual([...new Set(kinds)].sort(), ["compare", "race", "structured", "tools"]);
  await page.getByRole("button", { name: "Forget all" }).click();
  await page.getByText("Nothing yet.").waitFor();
});

test("without accounts the Keys panel says how to switch them on", async () => {
  await page.getByRole("link", { name: "Keys" }).click();
  await page.getByText("quicksilver serve --accounts").waitFor();
  assert.equal(await page.getByLabel("API key").count(), 0);
});

test("nothing went wrong on the way but the refusal of the broken schema", () => {
  const { errors, ...rest } = stage.seen;
  assert.deepEqual(rest, { violations: [], outbound: [], executions: [] });
  assert.equal(errors.length, Object.keys(WIDTHS).length);
  assert.ok(errors.every((text) => text.includes("400 (Bad Request)")));
});

test("tune: a job is created from uploaded rows, its losses are drawn, and it can be cancelled", async () => {
  await openPanel(page, stage.url, "tune");
  const rows = JSON.stringify({ messages: [{ role: "user", content: "a" }, { role: "assistant", content: "b" }] });
  const file = { name: "rows.jsonl", mimeType: "application/jsonl", buffer: Buffer.from(`${rows}\n`.repeat(12)) };
  await page.route("**/events?limit=100", async (route) => {
    const reply = await (await route.fetch()).json();
    const losses = [2.5, 1.5, 0.5].map((loss, i) => ({
      id: `loss${i}`, created_at: 1, level: "info", type: "metrics", message: "", data: { step: i + 1, train_loss: loss },
    }));
    await route.fulfill({ json: { ...reply, data: [...reply.data, ...losses] } });
  });
  assert.ok(await page.getByRole("button", { name: "Start" }).isDisabled(), "without rows there is nothing to start");
  await page.getByLabel("Rows (JSON Lines)").setInputFiles(file);
  await page.getByLabel("Name").fill("demo");
  await page.getByRole("button", { name: "Start" }).click();
  await page.getByRole("img", { name: "Training loss: from 2.500 to 0.500 in 3 steps" }).waitFor();
  await page.getByRole("button", { name: "Cancel" }).click();
  await page.getByRole("cell", { name: "cancelled" }).waitFor();
  assert.equal(await page.getByRole("button", { name: "Cancel" }).count(), 0);
  await page.unrouteAll({ behavior: "wait" });
});

/** Every test begins with a fresh page. */
async function openFresh(panel, width) {
  await page.setViewportSize({ width, height: 780 });
  await page.goto("about:blank");
  await openPanel(page, stage.url, panel);
  await page.waitForFunction(() => document.querySelector("#sidebar footer p"));
}

/** The card of the cell at the right end of a line must stay inside of the page. */
async function explainLastCell() {
  const cells = page.locator(".lane .cells").last();
  const right = await cells.locator(".cell").evaluateAll((all) => {
    const ends = all.map((cell) => cell.getBoundingClientRect().right);
    return ends.indexOf(Math.max(...ends));
  });
  await cells.locator(".cell").nth(right).dispatchEvent("pointerover");
  await page.locator(".card").waitFor();
}

/** Notes every state of the two lanes from now on; most are too short to be waited for from outside of the page. */
async function watchLanes() {
  await page.evaluate(() => {
    window.laneStates = [];
    const note = () => {
      const lanes = [...document.querySelectorAll(".lane")].map((lane) => ({
        isReplay: document.querySelector(".verdict") !== null,
        isHome: lane.classList.contains("home"),
        isWaiting: lane.textContent.includes("waits for its turn"),
        tokens: Number(/(\d+) tokens/u.exec(lane.querySelector(".counts").textContent)?.[1]),
      }));
      if (lanes.length === 2) window.laneStates.push(lanes);
    };
    const all = { subtree: true, childList: true, characterData: true, attributes: true };
    new MutationObserver(note).observe(document.querySelector("main"), all);
  });
  return () => page.evaluate(() => window.laneStates);
}
