// Random names for what is stored. Works on any origin: the browser's own UUIDs exist on secure ones only.

const NUM_BYTES = 12;

export function newId(): string {
  const bytes = crypto.getRandomValues(new Uint8Array(NUM_BYTES));
  return Array.from(bytes, (byte) => byte.toString(16).padStart(2, "0")).join("");
}
