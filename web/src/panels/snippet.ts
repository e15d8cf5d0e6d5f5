// A request as a program: curl, Python or JavaScript, with the body verbatim. A key, where one was sent, is left to the
// environment.

import type { Sent } from "../wire/client";

export const LANGUAGES = {
  curl: { title: "curl", highlight: "bash" },
  python: { title: "Python", highlight: "python" },
  javascript: { title: "JavaScript", highlight: "javascript" },
};
export type Language = keyof typeof LANGUAGES;

export function snippet(language: Language, origin: string, sent: Sent): string {
  const json = JSON.stringify(sent.body, null, 2);
  const url = origin + sent.path;
  if (language === "curl") return curl(url, json, sent.hadKey);
  return language === "python" ? python(url, json, sent.hadKey) : javascript(url, json, sent.hadKey);
}

function curl(url: string, json: string, hadKey: boolean): string {
  const quoted = json.replaceAll("'", `'\\''`);
  return [
    `curl -N ${url} \\`,
    ...(hadKey ? [`  -H "Authorization: Bearer $QUICKSILVER_API_KEY" \\`] : []),
    `  -H "Content-Type: application/json" \\`,
    `  -d '${quoted}'`,
  ].join("\n");
}

function python(url: string, json: string, hadKey: boolean): string {
  // A JSON string literal inside a raw-free Python string: json.loads keeps true, false and null as they were sent.
  return [
    hadKey ? "import json, os" : "import json",
    "import httpx",
    "",
    `body = json.loads(${JSON.stringify(JSON.stringify(JSON.parse(json)))})`,
    ...(hadKey ? [`headers = {"Authorization": f"Bearer {os.environ['QUICKSILVER_API_KEY']}"}`] : []),
    `with httpx.stream("POST", "${url}", json=body, ${hadKey ? "headers=headers, " : ""}timeout=None) as reply:`,
    "    for line in reply.iter_lines():",
    "        print(line)",
  ].join("\n");
}

function javascript(url: string, json: string, hadKey: boolean): string {
  return [
    `const reply = await fetch("${url}", {`,
    `  method: "POST",`,
    "  headers: {",
    ...(hadKey ? ["    Authorization: `Bearer ${process.env.QUICKSILVER_API_KEY}`,"] : []),
    `    "Content-Type": "application/json",`,
    "  },",
    `  body: JSON.stringify(${json.replaceAll("\n", "\n  ")}),`,
    "});",
    "for await (const piece of reply.body.pipeThrough(new TextDecoderStream())) process.stdout.write(piece);",
  ].join("\n");
}
