// The editor of the Code panel: ghost text, next edits with their jumps, apply as a diff. Each flow runs at a desktop's and
// at a phone's width, by keyboard.

import assert from "node:assert/strict";
import { after, before, test } from "node:test";
import { openPanel, openStage, ready } from "./stage.mjs";

const WIDTHS = { desktop: 1280, phone: 390 };
let stage, page;

before(async () => {
  stage = await openStage();
  page = stage.page;
  await ready(page, stage.url);
});
after(async () => {
  await stage.close();
});

test("the editor is not part of the first load", async () => {
  const scripts = [];
  const note = (request) => scripts.push(request.url());
  page.on("request", note);
  await ready(page, stage.url);
  assert.ok(!scripts.some((url) => url.includes("/create-")));
  await openCode(WIDTHS.desktop);
  page.off("request", note);
  assert.equal(scripts.filter((url) => url.includes("/create-")).length, 1);
});

for (const [device, width] of Object.entries(WIDTHS)) {
  test(`${device}: a completion is ghost text; Tab accepts it and reports that`, async () => {
    await openCode(width);
    await page.getByLabel("Sample").selectOption("even");
    const editor = page.getByLabel("even.py");
    await editor.focus();
    const asked = page.waitForRequest((request) => request.url().endsWith("/v1/fim/completions"));
    await page.keyboard.press("Control+Space");
    const { prompt, suffix } = (await asked).postDataJSON();
    assert.equal(prompt, "def is_even(n: int) -> bool:\n    ");
    assert.equal(suffix, "\n\nprint(is_even(4))\n");
    await ghost().waitFor();
    assert.equal(await ghost().textContent(), "return n % 2 == 0");
    assert.match(await page.getByRole("status").textContent(), /\d+ ms · \d+ tokens · \d+ rounds · \d+ forwards/u);
    const told = feedback();
    await page.keyboard.press("Tab");
    assert.deepEqual((await told).user_action, "accept");
    assert.equal((await lines(editor))[1], "    return n % 2 == 0");
    assert.equal(await ghost().count(), 0);
    assert.equal(await focusedLabel(), "even.py");
  });

  test(`${device}: typing shortens the ghost text, Escape rejects it, and then Tab leaves the editor`, async () => {
    await openCode(width);
    await page.getByLabel("Sample").selectOption("even");
    await page.getByLabel("even.py").focus();
    await page.keyboard.press("Control+Space");
    await ghost().waitFor();
    await page.keyboard.type("ret");
    assert.equal(await ghost().textContent(), "urn n % 2 == 0");
    const told = feedback();
    await page.keyboard.press("Escape");
    assert.equal((await told).user_action, "reject");
    assert.equal(await ghost().count(), 0);
    assert.equal((await lines(page.getByLabel("even.py")))[1], "    ret");
    await page.keyboard.press("Tab");
    assert.notEqual(await focusedLabel(), "even.py");
  });

  test(`${device}: a next edit is drawn over the code; Tab jumps, Tab accepts, and the next place follows`, async () => {
    await openCode(width);
    const editor = page.getByLabel("files.py");
    await editor.focus();
    const asked = page.waitForRequest((request) => request.url().endsWith("/v1/edit/completions"));
    await page.keyboard.press("Control+Enter");
    const prompt = (await asked).postDataJSON().messages[0].content;
    assert.match(prompt, /<\|edit_diff_history\|>[\s\S]*-    print\('read', path\)\n\+    log\.info/u);
    await page.locator(".qs-added").first().waitFor();
    assert.deepEqual(await page.locator(".qs-added").allTextContents(), ["", "    log.info('write %s', path)"]);
    for (const line of await page.locator(".qs-added").all()) {
      assert.ok((await line.boundingBox()).height > 10, "blank lines have their height");
    }
    assert.match(await page.locator(".qs-removed").textContent(), /print\('write', path\)/u);
    assert.match(await page.locator(".qs-note").textContent(), /Tab jumps to line 3/u);
    const told = feedback();
    await page.keyboard.press("Tab");
    assert.match(await page.locator(".qs-note").textContent(), /Tab accepts/u);
    await page.keyboard.press("Tab");
    assert.equal((await told).user_action, "accept");
    assert.equal((await lines(editor))[2], "");
    assert.match(await page.locator(".qs-note").textContent(), /Tab jumps to line 8/u);
    const again = page.waitForRequest((request) => request.url().endsWith("/v1/edit/completions"));
    await page.keyboard.press("Tab");
    await page.keyboard.press("Tab");
    await again;
    await page.getByText("Nothing to change.").waitFor();
    assert.equal((await lines(editor))[7], "    log.info('write %s', path)");
    assert.equal(await page.getByRole("button", { name: "Accept" }).count(), 0);
    await withinWidth(width);
  });

  test(`${device}: Escape rejects a next edit and leaves the code as it was`, async () => {
    await openCode(width);
    const editor = page.getByLabel("files.py");
    const before = await lines(editor);
    await page.getByRole("button", { name: "Predict next edit" }).click();
    await page.locator(".qs-added").first().waitFor();
    const told = feedback();
    await page.keyboard.press("Escape");
    assert.equal((await told).user_action, "reject");
    assert.equal(await page.locator(".qs-added").count(), 0);
    assert.deepEqual(await lines(editor), before);
  });

  test(`${device}: apply shows both files, blank lines included, and accepting takes the merged one`, async () => {
    await openCode(width);
    await page.getByRole("tab", { name: "Editor" }).press("ArrowRight");
    await page.getByLabel("Update", { exact: true }).last().waitFor();
    await page.getByRole("button", { name: "Apply", exact: true }).click();
    const diff = page.getByRole("region", { name: "Applied edit" });
    const merged = diff.getByLabel("Merged file");
    await merged.waitFor();
    assert.match((await lines(merged)).join("\n"), /return f'hello \{name\}!'\n\n\ndef main/u);
    assert.equal(await diff.getByLabel("Original file").count(), width > 760 ? 1 : 0);
    for (const line of await merged.locator(".cm-line").all()) assert.ok((await line.boundingBox()).height > 10);
    await withinWidth(width);
    const told = feedback();
    await page.getByRole("button", { name: "Accept" }).click();
    assert.equal((await told).user_action, "accept");
    await page.waitForFunction(() => !document.querySelector('[aria-label="Applied edit"]'));
    const original = page.getByRole("textbox", { name: "Original" });
    // The editor takes the merged text in the frame after the diff is gone.
    await original.locator(".cm-line", { hasText: "return f'hello {name}!'" }).waitFor();
    assert.equal((await lines(original))[1], "    return f'hello {name}!'");
  });
}

test("a new request cancels the stale one of the same editor", async () => {
  await openCode(WIDTHS.desktop);
  await page.getByLabel("While typing").selectOption("none");
  await page.getByLabel("files.py").focus();
  await page.keyboard.type(" # wait_for_it");
  await page.keyboard.press("Control+Space");
  await page.getByText("Asking…").waitFor();
  const failed = page.waitForEvent("requestfailed");
  for (let i = 0; i < 3; i++) await page.keyboard.press("Backspace");
  assert.match((await failed).failure().errorText, /ABORTED/u);
  await page.keyboard.press("Control+Space");
  await ghost().waitFor();
});

test("a control that is entered while a request is under way keeps the focus", async () => {
  await openCode(WIDTHS.desktop);
  let answer;
  const held = new Promise((resolve) => (answer = resolve));
  await page.route("**/v1/fim/completions", async (route) => {
    await held;
    await route.continue();
  });
  await page.getByLabel("files.py").focus();
  await page.keyboard.press("Control+Space");
  await page.getByText("Asking…").waitFor();
  await page.getByLabel("While typing").focus();
  answer();
  await ghost().waitFor();
  assert.ok(await page.getByLabel("While typing").evaluate((element) => element === document.activeElement));
  await page.unrouteAll({ behavior: "wait" });
});

test("typing asks by itself after a pause, for what was chosen", async () => {
  await openCode(WIDTHS.desktop);
  await page.getByLabel("While typing").selectOption("edit");
  const asked = page.waitForRequest((request) => request.url().endsWith("/v1/edit/completions"));
  await page.getByLabel("files.py").focus();
  await page.keyboard.type("  # /?");
  await asked;
  await page.locator(".qs-added").first().waitFor();
  assert.equal(await page.getByRole("dialog").count(), 0, "? typed in the editor opens no dialogue");
  assert.match((await lines(page.getByLabel("files.py")))[1], /# \/\?$/u);
});

test("markup in a suggestion is text", async () => {
  await openCode(WIDTHS.desktop);
  await page.getByLabel("While typing").selectOption("none");
  await page.getByLabel("files.py").focus();
  await page.keyboard.type("  # hostile");
  await page.keyboard.press("Control+Space");
  await ghost().waitFor();
  assert.match(await ghost().textContent(), /<img src=x onerror=alert\(1\)><script>/u);
  await page.keyboard.press("Control+Enter");
  await page.locator(".qs-added", { hasText: "<script>" }).waitFor();
  assert.equal(await page.locator("main img, main script").count(), 0);
});

test("nothing went wrong on the way", () => {
  assert.deepEqual(stage.seen, { errors: [], violations: [], outbound: [], executions: [] });
});

/** Every test begins with a fresh page. */
async function openCode(width) {
  await page.setViewportSize({ width, height: 780 });
  await page.goto("about:blank");
  await openPanel(page, stage.url, "code");
  await page.getByLabel("files.py").waitFor();
  await page.waitForFunction(() => document.querySelector("#sidebar footer p"));
}

function ghost() {
  return page.locator(".qs-ghost");
}

async function feedback() {
  const request = await page.waitForRequest((each) => each.url().endsWith("/feedback"));
  const body = request.postDataJSON();
  assert.match(body.request_id, /cmpl/u);
  return body;
}

function lines(editor) {
  return editor.locator(".cm-line").allTextContents();
}

function focusedLabel() {
  return page.evaluate(() => {
    const focused = document.activeElement;
    return (focused?.shadowRoot?.activeElement ?? focused)?.getAttribute("aria-label") ?? "";
  });
}

async function withinWidth(width) {
  const widest = await page.evaluate(() => document.documentElement.scrollWidth);
  assert.ok(widest <= width, `the page is ${widest} px wide`);
}
