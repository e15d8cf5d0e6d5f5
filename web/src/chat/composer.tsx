// Where the user writes, with text files attached. Enter sends, Shift+Enter breaks the line, Escape stops. Counts the tokens
// of the draft.

import { useEffect, useLayoutEffect, useState } from "preact/hooks";
import { Store, useStore } from "../store/observable";
import { currentModel } from "../store/server";
import { settings } from "../store/settings";
import { compact } from "../ui/format";
import { countTokens } from "../wire/client";
import { AttachButton, AttachedFiles, useFileDrop } from "./attached_files";
import { attached, compose, detachAll, numReading } from "./attachments";
import { path } from "./conversation";
import { current, running, send, stop } from "./session";

const COUNT_AFTER_MS = 300;

/** True while the composer is to be focused as soon as it is on the page. */
let isAwaited = false;

/** Focuses at once where it can: one frame later the user may be typing in another field, which would lose the text. */
export function focusComposer(): void {
  const field = document.querySelector<HTMLElement>("[data-composer]");
  isAwaited = field === null;
  field?.focus();
}

/** Kept while other panels are shown. */
const draft = new Store("");

export function Composer() {
  useLayoutEffect(() => {
    if (isAwaited) focusComposer();
  }, []);
  const text = compose(useStore(draft), useStore(attached));
  const run = useStore(running);
  const isReading = useStore(numReading) > 0;
  const isOver = useFileDrop();
  return (
    <form
      class="composer"
      onSubmit={(event) => {
        event.preventDefault();
        submit();
      }}
    >
      <div class={isOver ? "box over" : "box"}>
        <textarea
          data-composer
          aria-label="Message"
          placeholder={isOver ? "Drop text files here" : "Ask something"}
          rows={2}
          value={draft.get()}
          onInput={(event) => draft.set(event.currentTarget.value)}
          onKeyDown={(event) => {
            if (event.key !== "Enter" || event.shiftKey || event.isComposing) return;
            event.preventDefault();
            submit();
          }}
        />
        <AttachedFiles onDetached={focusComposer} />
        <div class="row">
          <AttachButton />
          <TokenMeter draft={text} />
          {run ? (
            <button type="button" class="primary" aria-keyshortcuts="Escape" onClick={stop}>
              Stop
            </button>
          ) : (
            <button type="submit" class="primary" disabled={text === "" || isReading}>
              Send
            </button>
          )}
        </div>
      </div>
    </form>
  );
}

/** Sends what is in the stores, which are never behind the last input event. */
function submit(): void {
  const text = compose(draft.get(), attached.get());
  if (text === "" || running.get() || numReading.get() > 0 || settings.get().model === "") return;
  draft.set("");
  detachAll();
  void send(text);
}

/** Tokens that the next request will carry, of those the context holds. */
function TokenMeter({ draft }: { draft: string }) {
  const { model } = useStore(settings);
  const conversation = useStore(current);
  const inDraft = useTokenCount(model, draft);
  const usage = path(conversation).findLast((message) => message.outcome?.usage)?.outcome?.usage;
  const total = (usage?.total_tokens ?? 0) + inDraft;
  const room = currentModel()?.context_length ?? 0;
  return (
    <span class="tokens mono">
      {room > 0 && <meter min={0} max={room} high={room * 0.9} value={total} aria-label="Context used" />}
      {compact(total)} / {compact(room)} tokens
    </span>
  );
}

function useTokenCount(model: string, text: string): number {
  const [count, setCount] = useState(0);
  useEffect(() => {
    if (text === "" || model === "") {
      setCount(0);
      return;
    }
    const abort = new AbortController();
    const ask = () => countTokens(model, text, abort.signal).then(setCount, () => undefined);
    const timer = setTimeout(() => void ask(), COUNT_AFTER_MS);
    return () => {
      clearTimeout(timer);
      abort.abort();
    };
  }, [model, text]);
  return count;
}
