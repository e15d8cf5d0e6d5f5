// Markdown: what is allowed becomes elements, everything else stays text.

import { render } from "preact";
import { describe, expect, test } from "vitest";
import { Markdown } from "../src/markdown/render";

function rendered(text: string): HTMLElement {
  const host = document.createElement("div");
  render(<Markdown text={text} />, host);
  return host;
}

describe("what is allowed", () => {
  test.each([
    ["**bold**", "strong", "bold"],
    ["*soft*", "em", "soft"],
    ["`a < b`", "code", "a < b"],
    ["# Title", "h3", "Title"],
    ["> said", "blockquote", "said"],
    ["- one\n- two", "li", "one"],
    ["| a |\n|---|\n| b |", "td", "b"],
    ["~~gone~~", "del", "gone"],
  ])("%s", (text, selector, content) => {
    expect(rendered(text).querySelector(selector)?.textContent?.trim()).toBe(content);
  });
  test("a web link, without a referrer", () => {
    const link = rendered("[site](https://example.org/a)").querySelector("a");
    expect(link?.getAttribute("href")).toBe("https://example.org/a");
    expect(link?.getAttribute("rel")).toContain("noreferrer");
  });
  test("code keeps its text to the letter", () => {
    const code = 'if (a < b && c) { say("<b>&amp;</b>"); }';
    expect(rendered("```js\n" + code + "\n```").querySelector("pre code")?.textContent).toBe(code);
  });
});

describe("what is not", () => {
  test.each([
    "<img src=x onerror=alert(1)>",
    "<script>alert(1)</script>",
    "a <b onclick=x>b</b>",
    "<svg/onload=alert(1)>",
  ])("%s", (text) => {
    const host = rendered(text);
    expect(host.querySelector("img, script, svg, b")).toBeNull();
    expect(host.textContent).toContain("<");
  });
  test.each([
    "[x](javascript:alert(1))",
    "[x](JaVaScRiPt:alert(1))",
    "[x](data:text/html,hi)",
    "[x](vbscript:a)",
    "<javascript:alert(1)>",
  ])("%s", (text) => {
    expect(rendered(text).querySelector("a")).toBeNull();
  });
  test("an image is a link, never fetched", () => {
    const host = rendered("![cat](https://example.org/cat.png)");
    expect(host.querySelector("img")).toBeNull();
    expect(host.querySelector("a")?.textContent).toBe("cat");
  });
});
