// Server-sent events out of a byte stream: the data of each event, in order, whatever the chunking.
// Comments and other fields are skipped; `[DONE]` ends the stream.

export async function* eventData(body: ReadableStream<Uint8Array>): AsyncGenerator<string> {
  const lines = new LineSplitter();
  const decoder = new TextDecoder();
  for await (const bytes of readAll(body)) {
    for (const line of lines.push(decoder.decode(bytes, { stream: true }))) {
      if (!line.startsWith("data:")) continue;
      const data = line.slice(5).trimStart();
      if (data === "[DONE]") return;
      yield data;
    }
  }
}

async function* readAll(body: ReadableStream<Uint8Array>): AsyncGenerator<Uint8Array> {
  const reader = body.getReader();
  try {
    for (let item = await reader.read(); !item.done; item = await reader.read()) yield item.value;
  } finally {
    reader.releaseLock();
  }
}

class LineSplitter {
  private rest = "";

  push(text: string): string[] {
    const lines = (this.rest + text).split("\n");
    this.rest = lines.pop() ?? "";
    return lines.map((line) => (line.endsWith("\r") ? line.slice(0, -1) : line));
  }
}
