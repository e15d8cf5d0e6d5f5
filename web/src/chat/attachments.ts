// Text files that go with the next message: read, checked, and written below it as fenced blocks with their names.

import { Store } from "../store/observable";
import { bytes } from "../ui/format";

export interface Attachment {
  name: string;
  text: string;
  size: number;
}

/** Of all files of a message together; more would not fit into the context of most models. */
export const MAX_BYTES = 256_000;
const MAX_NAME_CHARS = 120;

export const attached = new Store<readonly Attachment[]>([]);
/** Why files of the last choice were refused. */
export const refusal = new Store<string | null>(null);
export const numReading = new Store(0);

/** Adds the files that can be attached; the reasons for the others are in `refusal`. */
export async function attach(files: readonly File[]): Promise<void> {
  const reasons: string[] = [];
  numReading.update((num) => num + 1);
  for (const file of files) {
    try {
      const read = await readFile(file);
      checkSize(read);
      attached.update((known) => [...known, read]);
    } catch (error) {
      reasons.push((error as Error).message);
    }
  }
  refusal.set(reasons.join(" ") || null);
  numReading.update((num) => num - 1);
}

export function detach(attachment: Attachment): void {
  attached.update((known) => known.filter((other) => other !== attachment));
  refusal.set(null);
}

export function detachAll(): void {
  attached.set([]);
  refusal.set(null);
}

/** The text of a message with its files. */
export function compose(text: string, files: readonly Attachment[]): string {
  return [text, ...files.map(fenced)].filter((part) => part.trim() !== "").join("\n\n");
}

/** The fence is longer than every run of backticks in the file, so that the file cannot end it. */
function fenced({ name, text }: Attachment): string {
  const runs = text.match(/`+/gu) ?? [];
  const fence = "`".repeat(runs.reduce((longest, run) => Math.max(longest, run.length + 1), 3));
  const language = /\.([a-z0-9]{1,10})$/iu.exec(name)?.[1]?.toLowerCase() ?? "";
  return `File: ${name}\n${fence}${language}\n${text}${text.endsWith("\n") ? "" : "\n"}${fence}`;
}

/** Raises an Error whose message names the file and says what to do. */
async function readFile(file: File): Promise<Attachment> {
  const name = file.name.replaceAll(/[\p{Cc}`]/gu, "_").slice(-MAX_NAME_CHARS);
  checkSize({ name, size: file.size });
  const content = await file.arrayBuffer().catch(() => {
    throw new Error(`${name} cannot be read. Attach files, not folders.`);
  });
  const text = decode(content);
  if (text === null) throw new Error(`${name} is not a text file in UTF-8. Convert it to text first.`);
  return { name, text, size: file.size };
}

function checkSize({ name, size }: { name: string; size: number }): void {
  const total = attached.get().reduce((sum, other) => sum + other.size, size);
  if (total <= MAX_BYTES) return;
  const others = size <= MAX_BYTES ? `, with the other files ${bytes(total)}` : "";
  throw new Error(`${name} has ${bytes(size)}${others}. A message takes ${bytes(MAX_BYTES)} of files: attach a part of it.`);
}

function decode(content: ArrayBuffer): string | null {
  try {
    const text = new TextDecoder("utf-8", { fatal: true }).decode(content);
    return text.includes("\0") ? null : text;
  } catch {
    return null;
  }
}
