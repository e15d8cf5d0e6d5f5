// A button that puts text on the clipboard and says so, to eyes and to screen readers.

import { useState } from "preact/hooks";

const SAID_MS = 1500;

interface Props {
  /** A function is called when the button is pressed. */
  text: string | (() => string);
  label: string;
  /** What the button reads. */
  face?: string;
}

export function CopyButton({ text, label, face = "Copy" }: Props) {
  const [isCopied, setCopied] = useState(false);
  const copy = async () => {
    await putOnClipboard(typeof text === "string" ? text : text());
    setCopied(true);
    setTimeout(() => setCopied(false), SAID_MS);
  };
  return (
    <button type="button" class="ghost" aria-label={label} onClick={() => void copy()}>
      <span aria-live="polite">{isCopied ? "Copied" : face}</span>
    </button>
  );
}

/** The clipboard API exists on secure origins only; elsewhere the old command still does. */
async function putOnClipboard(text: string): Promise<void> {
  if (navigator.clipboard) return navigator.clipboard.writeText(text);
  const field = document.createElement("textarea");
  field.value = text;
  document.body.append(field);
  field.select();
  document.execCommand("copy");
  field.remove();
}
