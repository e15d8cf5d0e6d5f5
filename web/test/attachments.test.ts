// Files of a message: what is attached, what is refused and why, and the text that is sent.

import { beforeEach, expect, test } from "vitest";
import { attach, attached, compose, detach, detachAll, MAX_BYTES, numReading, refusal } from "../src/chat/attachments";

const file = (name: string, content: BlobPart) => new File([content], name);

beforeEach(() => detachAll());

test("a file is fenced below the text, with its name and language", async () => {
  await attach([file("hello.py", "print(1)\n"), file("LICENSE", "free")]);
  const expected = "Look:\n\nFile: hello.py\n```py\nprint(1)\n```\n\nFile: LICENSE\n```\nfree\n```";
  expect(compose("Look:", attached.get())).toBe(expected);
  expect(compose(" \n", attached.get().slice(1))).toBe("File: LICENSE\n```\nfree\n```");
  expect(numReading.get()).toBe(0);
});

test("no file can end its fence, nor its name begin one", async () => {
  await attach([file("a`\n```b.md", "````\nout\n````\n")]);
  expect(compose("", attached.get())).toBe("File: a_____b.md\n`````md\n````\nout\n````\n`````");
});

test("what is not text is refused by name", async () => {
  await attach([file("photo.png", new Uint8Array([0x89, 0x50, 0xff])), file("data.bin", "a\0b"), file("notes.txt", "ä")]);
  expect(attached.get().map(({ name }) => name)).toEqual(["notes.txt"]);
  expect(refusal.get()).toMatch(/^photo\.png is not a text file.*data\.bin is not a text file/u);
});

test("the limit is for all files of a message together", async () => {
  await attach([file("large.txt", "x".repeat(MAX_BYTES + 1))]);
  expect(refusal.get()).toBe("large.txt has 256 kB. A message takes 256 kB of files: attach a part of it.");
  await attach([file("half.txt", "x".repeat(MAX_BYTES / 2)), file("more.txt", "x".repeat(MAX_BYTES / 2 + 500))]);
  expect(attached.get().map(({ name }) => name)).toEqual(["half.txt"]);
  expect(refusal.get()).toMatch(/^more\.txt has 128\.5 kB, with the other files 256\.5 kB\./u);
  detach(attached.get()[0]!);
  expect(attached.get()).toEqual([]);
  expect(refusal.get()).toBeNull();
});

test("what cannot be read, as a folder, is refused", async () => {
  const folder = file("folder", "");
  folder.arrayBuffer = () => Promise.reject(new DOMException("gone", "NotFoundError"));
  await attach([folder]);
  expect(refusal.get()).toBe("folder cannot be read. Attach files, not folders.");
});
