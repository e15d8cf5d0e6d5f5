// A request as a program: curl, Python or JavaScript, with the body verbatim and the key left to the environment.

export const LANGUAGES = {
  curl: { title: "curl", highlight: "bash" },
  python: { title: "Python", highlight: "python" },
  javascript: { title: "JavaScript", highlight: "javascript" },
};
export type Language = keyof typeof LANGUAGES;

export function snippet(language: Language, origin: string, path: string, body: unknown): string {
  const json = JSON.stringify(body, null, 2);
  if (language === "curl") return curl(origin + path, json);
  return language === "python" ? python(origin + path, json) : javascript(origin + path, json);
}

function curl(url: string, json: string): string {
  const quoted = json.replaceAll("'", `'\\''`);
  return [
    `curl -N ${url} \\`,
    `  -H "Authorization: Bearer $QUICKSILVER_API_KEY" \\`,
    `  -H "Content-Type: application/json" \\`,
    `  -d '${quoted}'`,
  ].join("\n");
}

function python(url: string, json: string): string {
  // A JSON string literal inside a raw-free Python string: json.loads keeps true, false and null as they were sent.
  return [
    "import json, os",
    "import httpx",
    "",
    `body = json.loads(${JSON.stringify(JSON.stringify(JSON.parse(json)))})`,
    `headers = {"Authorization": f"Bearer {os.environ.get('QUICKSILVER_API_KEY', '')}"}`,
    `with httpx.stream("POST", "${url}", json=body, headers=headers, timeout=None) as reply:`,
    "    for line in reply.iter_lines():",
    "        print(line)",
  ].join("\n");
}

function javascript(url: string, json: string): string {
  return [
    `const reply = await fetch("${url}", {`,
    `  method: "POST",`,
    "  headers: {",
    '    Authorization: `Bearer ${process.env.QUICKSILVER_API_KEY ?? ""}`,',
    `    "Content-Type": "application/json",`,
    "  },",
    `  body: JSON.stringify(${json.replaceAll("\n", "\n  ")}),`,
    "});",
    "for await (const piece of reply.body.pipeThrough(new TextDecoderStream())) process.stdout.write(piece);",
  ].join("\n");
}
