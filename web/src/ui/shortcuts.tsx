// The keys that work everywhere, in a dialogue that `?` opens and Escape closes.

import { useRef } from "preact/hooks";

const SHORTCUTS: [keys: string, meaning: string][] = [
  ["Enter", "send"],
  ["Shift Enter", "break the line"],
  ["Ctrl K", "new conversation"],
  ["/", "go to the composer"],
  ["← → Home End", "walk the tokens of a focused answer, or the scrubber"],
  ["Space", "play or pause the focused scrubber"],
  ["Ctrl Space", "complete at the cursor (Code)"],
  ["Ctrl Enter", "predict the next edit (Code)"],
  ["Tab", "accept a suggestion, or jump to it (Code)"],
  ["Escape", "reject a suggestion (Code); stop the answer"],
  ["?", "this list"],
];
const ID = "shortcuts";

export function showShortcuts(): void {
  const dialog = document.getElementById(ID);
  if (dialog instanceof HTMLDialogElement && !dialog.open) dialog.showModal();
}

export function Shortcuts() {
  const dialog = useRef<HTMLDialogElement>(null);
  return (
    <dialog id={ID} ref={dialog} aria-labelledby="shortcuts-title">
      <h2 id="shortcuts-title">Keyboard</h2>
      <dl class="facts">
        {SHORTCUTS.map(([keys, meaning]) => (
          <div key={keys}>
            <dt>
              <kbd>{keys}</kbd>
            </dt>
            <dd>{meaning}</dd>
          </div>
        ))}
      </dl>
      <button type="button" onClick={() => dialog.current?.close()}>
        Close
      </button>
    </dialog>
  );
}
