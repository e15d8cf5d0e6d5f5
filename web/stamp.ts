// The build's birth certificate: which sources made which files. A test in Python recomputes both halves, so a
// committed build can neither lag behind its source nor be edited by hand.

import { createHash } from "node:crypto";
import { readFileSync, readdirSync, writeFileSync } from "node:fs";
import { join, relative, sep } from "node:path";
import type { Plugin } from "vite";

const SOURCES = ["index.html", "package.json", "package-lock.json", "stamp.ts", "tsconfig.json", "vite.config.ts"];

export function stamp(root: string, outDir: string): Plugin {
  return {
    name: "stamp",
    // Without this a run of the tests would stamp an old build with the new sources.
    apply: "build",
    closeBundle() {
      const sources = [...SOURCES.map((name) => join(root, name)), ...filesUnder(join(root, "src"))];
      const built = filesUnder(outDir).filter((path) => !path.endsWith("build.json"));
      const record = { sources: digest(root, sources), files: digests(outDir, built) };
      writeFileSync(join(outDir, "build.json"), JSON.stringify(record, null, 1) + "\n");
    },
  };
}

function filesUnder(dir: string): string[] {
  const entries = readdirSync(dir, { recursive: true, withFileTypes: true });
  return entries.filter((e) => e.isFile()).map((e) => join(e.parentPath, e.name));
}

function digests(root: string, paths: string[]): Record<string, string> {
  const named = paths.map((path) => [posix(root, path), sha256(readFileSync(path))] as const);
  return Object.fromEntries(named.sort(([a], [b]) => (a < b ? -1 : 1)));
}

function digest(root: string, paths: string[]): string {
  const lines = Object.entries(digests(root, paths)).map(([name, hash]) => `${hash}  ${name}\n`);
  return sha256(lines.join(""));
}

function posix(root: string, path: string): string {
  return relative(root, path).split(sep).join("/");
}

function sha256(data: string | Uint8Array): string {
  return createHash("sha256").update(data).digest("hex");
}
