// Next edit: edit the file, and the server proposes what you would change next. The history it sees is your own
// editing since the panel was opened; the proposal is shown as a diff, and accepting or rejecting it is reported.

import { createTwoFilesPatch } from "diff";
import { useState } from "preact/hooks";
import { tell } from "../wire/client";
import type { ChatReply } from "../wire/types";
import { DiffView } from "./diff_view";
import { editPrompt, regionAround, unfence } from "./edit_prompt";
import { useTask } from "./task";
import { TaskLine } from "./task_line";

const FILE = "cart.py";
const BEFORE = "def total(items):\n    sum = 0\n    for item in items:\n        sum += item.price\n    return sum\n";
const NOW = "def total(items, tax):\n    sum = 0\n    for item in items:\n        sum += item.price\n    return sum\n";

export function NextEditTab() {
  const [before, setBefore] = useState(BEFORE);
  const [code, setCode] = useState(NOW);
  const [cursor, setCursor] = useState(NOW.indexOf("tax") + 3);
  const task = useTask<ChatReply>("/v1/edit/completions");
  const region = regionAround(code, cursor);
  const history = createTwoFilesPatch(`a/${FILE}`, `b/${FILE}`, before, code, "", "", { context: 2 });
  const content = task.reply?.choices[0]?.message.content ?? null;
  const proposal = content === null ? null : code.slice(0, region.start) + unfence(content) + code.slice(region.end);
  const ask = () =>
    task.ask({ messages: [{ role: "user", content: editPrompt(FILE, code, cursor, region, history) }] });
  const answer = (isAccepted: boolean) => {
    void reportFeedback(task.reply?.id ?? "", isAccepted);
    if (isAccepted && proposal !== null) {
      setBefore(code);
      setCode(proposal);
    }
    task.clear();
  };
  return (
    <div>
      <label>
        {FILE}
        <textarea
          class="mono"
          rows={10}
          spellcheck={false}
          value={code}
          onInput={(event) => setCode(event.currentTarget.value)}
          onSelect={(event) => setCursor(event.currentTarget.selectionStart)}
        />
      </label>
      <div class="row">
        <button type="button" class="primary" disabled={task.isBusy} onClick={() => void ask()}>
          Predict next edit
        </button>
      </div>
      {proposal !== null && (
        <>
          <DiffView before={code} after={proposal} label="Proposed edit" />
          <div class="row">
            <button type="button" onClick={() => answer(true)}>
              Accept
            </button>
            <button type="button" onClick={() => answer(false)}>
              Reject
            </button>
          </div>
        </>
      )}
      <TaskLine task={task} />
    </div>
  );
}

function reportFeedback(requestId: string, isAccepted: boolean): Promise<void> {
  const user_action = isAccepted ? "accept" : "reject";
  return tell("/feedback", { request_id: requestId, provider_name: "playground", user_action });
}
