// The account behind a key: what is asked for, where, and how the two reads become one series.

import { afterEach, expect, test, vi } from "vitest";
import { getUsage, makeKey, revokeKey } from "../src/wire/account";
import { holdKey, lastSent } from "../src/wire/client";

const asked: { url: string; init: RequestInit }[] = [];

function serve(reply: (url: string) => unknown): void {
  asked.length = 0;
  vi.stubGlobal("fetch", async (url: string, init: RequestInit) => {
    asked.push({ url, init });
    return new Response(JSON.stringify(reply(url)));
  });
}

afterEach(() => vi.unstubAllGlobals());

test("usage and costs meet by bucket, empty ones included", async () => {
  const line = { num_model_requests: 2, input_tokens: 30, output_tokens: 12 };
  const usage = [
    { start_time: 0, results: [] },
    { start_time: 60, results: [line, line] },
  ];
  const costs = [{ start_time: 60, results: [{ amount: { value: 1.5 } }] }];
  serve((url) => ({ data: url.includes("/costs") ? costs : usage }));
  expect(await getUsage(0, "1h", 2)).toEqual([
    { start: 0, requests: 0, tokensIn: 0, tokensOut: 0, cost: 0 },
    { start: 60, requests: 4, tokensIn: 60, tokensOut: 24, cost: 1.5 },
  ]);
  expect(asked.every(({ url }) => url.endsWith("?start_time=0&bucket_width=1h&limit=2"))).toBe(true);
});

test("keys are managed with the key in a header, and not recorded as requests of the user's", async () => {
  serve(() => ({ value: "qs-new" }));
  holdKey("qs-own");
  await makeKey({ name: "laptop", scopes: ["usage"] });
  await revokeKey("key/../1");
  holdKey("");
  expect(asked.map(({ url, init }) => [init.method, url])).toEqual([
    ["POST", "/v1/account/keys"],
    ["DELETE", "/v1/account/keys/key%2F..%2F1"],
  ]);
  for (const { url, init } of asked) {
    expect(url).not.toContain("qs-own");
    expect((init.headers as Record<string, string>)["authorization"]).toBe("Bearer qs-own");
  }
  expect(lastSent.get()).toBeNull();
});
