// Fill in the middle: a prefix, a suffix, and the proposal as ghost text between them; Tab takes it.

import { useState } from "preact/hooks";
import type { TextReply } from "../wire/types";
import { useTask } from "./task";
import { TaskLine } from "./task_line";

const PREFIX = "def is_even(n: int) -> bool:\n    ";
const SUFFIX = "\n\nprint(is_even(4))\n";

export function FimTab() {
  const [prefix, setPrefix] = useState(PREFIX);
  const [suffix, setSuffix] = useState(SUFFIX);
  const task = useTask<TextReply>("/v1/fim/completions");
  const middle = task.reply?.choices[0]?.text ?? "";
  const accept = () => {
    setPrefix(prefix + middle);
    task.clear();
  };
  return (
    <div
      class="fim"
      onKeyDown={(event) => {
        if (event.key === "Tab" && !event.shiftKey && middle) {
          event.preventDefault();
          accept();
        }
        if (event.key === "Enter" && (event.ctrlKey || event.metaKey))
          void task.ask({ prompt: prefix, suffix, max_tokens: 128 });
      }}
    >
      <label>
        Before the cursor
        <textarea
          class="mono"
          rows={8}
          spellcheck={false}
          value={prefix}
          onInput={(event) => setPrefix(event.currentTarget.value)}
        />
      </label>
      <label>
        After the cursor
        <textarea
          class="mono"
          rows={5}
          spellcheck={false}
          value={suffix}
          onInput={(event) => setSuffix(event.currentTarget.value)}
        />
      </label>
      <div class="row">
        <button
          type="button"
          class="primary"
          disabled={task.isBusy}
          onClick={() => void task.ask({ prompt: prefix, suffix, max_tokens: 128 })}
        >
          Complete
        </button>
        {middle && (
          <button type="button" aria-keyshortcuts="Tab" onClick={accept}>
            Accept
          </button>
        )}
      </div>
      {task.reply && (
        <pre class="ghosted" aria-label="Completed code" tabIndex={0}>
          {prefix}
          <ins>{middle}</ins>
          {suffix}
        </pre>
      )}
      <TaskLine task={task} />
    </div>
  );
}
