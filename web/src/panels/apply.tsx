// Apply edit: an original file and a sketch of the change; the merged file is shown as a diff.

import { useState } from "preact/hooks";
import { CopyButton } from "../ui/copy_button";
import type { ChatReply } from "../wire/types";
import { DiffView } from "./diff_view";
import { unfence } from "./edit_prompt";
import { useTask } from "./task";
import { TaskLine } from "./task_line";

const ORIGINAL = "def greet(name):\n    return 'hello ' + name\n\ndef main():\n    print(greet('you'))\n";
const UPDATE = "def greet(name):\n    return f'hello {name}!'\n\n# ... existing code ...\n";

export function ApplyTab() {
  const [original, setOriginal] = useState(ORIGINAL);
  const [update, setUpdate] = useState(UPDATE);
  const task = useTask<ChatReply>("/v1/apply/completions");
  const content = task.reply?.choices[0]?.message.content ?? null;
  const merged = content === null ? null : unfence(content);
  const prompt = `<|original_code|>\n${original}\n<|/original_code|>\n\n<|update_snippet|>\n${update}\n<|/update_snippet|>`;
  return (
    <div>
      <label>
        Original
        <textarea
          class="mono"
          rows={8}
          spellcheck={false}
          value={original}
          onInput={(event) => setOriginal(event.currentTarget.value)}
        />
      </label>
      <label>
        Update
        <textarea
          class="mono"
          rows={6}
          spellcheck={false}
          value={update}
          onInput={(event) => setUpdate(event.currentTarget.value)}
        />
      </label>
      <div class="row">
        <button
          type="button"
          class="primary"
          disabled={task.isBusy}
          onClick={() => void task.ask({ messages: [{ role: "user", content: prompt }] })}
        >
          Apply
        </button>
        {merged !== null && <CopyButton text={merged} label="Copy merged code" />}
      </div>
      {merged !== null && <DiffView before={original} after={merged} label="Applied edit" />}
      <TaskLine task={task} />
    </div>
  );
}
