// Apply edit: an original file and a sketch of the change; the merged file is shown beside the original.

import type { EditorView } from "@codemirror/view";
import { useRef, useState } from "preact/hooks";
import { CodeDiff, CodeEditor } from "../editor/code_editor";
import { CopyButton } from "../ui/copy_button";
import { tell } from "../wire/client";
import type { ChatReply } from "../wire/types";
import { unfence } from "./edit_prompt";
import { useTask } from "./task";
import { TaskLine } from "./task_line";

const FILE = "greet.py";
const ORIGINAL = "def greet(name):\n    return 'hello ' + name\n\n\ndef main():\n    print(greet('you'))\n";
const UPDATE = "def greet(name):\n    return f'hello {name}!'\n\n# ... existing code ...\n";

interface Merged {
  before: string;
  after: string;
}

export function ApplyTab() {
  const [text, setText] = useState(ORIGINAL);
  const [merged, setMerged] = useState<Merged | null>(null);
  const original = useRef<EditorView | null>(null);
  const update = useRef<EditorView | null>(null);
  const task = useTask<ChatReply>();
  const apply = async () => {
    const before = original.current?.state.doc.toString() ?? "";
    const sketch = update.current?.state.doc.toString() ?? "";
    const content = `<|original_code|>\n${before}\n<|/original_code|>\n\n<|update_snippet|>\n${sketch}\n<|/update_snippet|>`;
    const reply = await task.ask("/v1/apply/completions", { messages: [{ role: "user", content }] });
    const answer = reply?.choices[0]?.message.content ?? null;
    if (answer !== null) setMerged({ before, after: unfence(answer) });
  };
  const decide = (isAccepted: boolean) => {
    const user_action = isAccepted ? "accept" : "reject";
    void tell("/feedback", { request_id: task.reply?.id ?? "", provider_name: "playground", user_action });
    if (isAccepted && merged) setText(merged.after);
    setMerged(null);
  };
  return (
    <div>
      <div class="sides">
        <section aria-label="Original">
          <h2>Original</h2>
          <CodeEditor label="Original" text={text} file={FILE} onView={(view) => (original.current = view)} />
        </section>
        <section aria-label="Update">
          <h2>Update</h2>
          <CodeEditor label="Update" text={UPDATE} file={FILE} onView={(view) => (update.current = view)} />
        </section>
      </div>
      <div class="row">
        <button type="button" class="primary" onClick={() => void apply()}>
          Apply
        </button>
        {merged !== null && merged.before !== merged.after && (
          <>
            <button type="button" onClick={() => decide(true)}>
              Accept
            </button>
            <button type="button" onClick={() => decide(false)}>
              Reject
            </button>
            <CopyButton text={merged.after} label="Copy merged code" />
          </>
        )}
      </div>
      {merged !== null && merged.before !== merged.after && <CodeDiff {...merged} file={FILE} label="Applied edit" />}
      <TaskLine task={task}>{merged !== null && merged.before === merged.after ? "Nothing to change." : ""}</TaskLine>
    </div>
  );
}
