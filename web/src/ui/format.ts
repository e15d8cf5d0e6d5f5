// Text for people: whitespace made visible, numbers kept short.

export function printable(text: string): string {
  const visible = text.replaceAll("\n", "⏎").replaceAll("\t", "⇥").replaceAll(" ", "␣");
  return visible === "" ? "(empty)" : visible;
}

export function compact(value: number): string {
  return new Intl.NumberFormat("en", { notation: "compact", maximumFractionDigits: 1 }).format(value);
}

/** Decimal units, as in a file manager. */
export function bytes(value: number): string {
  if (value < 1000) return `${value} B`;
  return value < 1_000_000 ? `${Number((value / 1000).toFixed(1))} kB` : `${Number((value / 1_000_000).toFixed(1))} MB`;
}

export function money(value: number | null): string {
  return value === null ? "free" : `$${value < 0.01 ? value.toFixed(6) : value.toFixed(2)}`;
}

/** Credits come as exact decimal text; people get six places at most. */
export function credits(amount: string): string {
  return new Intl.NumberFormat("en", { maximumFractionDigits: 6 }).format(Number(amount));
}

export function day(unixSeconds: number | null): string {
  return unixSeconds === null ? "never" : new Date(unixSeconds * 1000).toLocaleDateString();
}
