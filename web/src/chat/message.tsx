// One message with its verbs: copy, edit, retry, the branches beside it, and the way an answer came about.

import { useEffect, useLayoutEffect, useRef, useState } from "preact/hooks";
import { Scrubber } from "../diffusion/scrubber";
import { pack } from "../diffusion/recording_file";
import { Markdown } from "../markdown/render";
import { useStore } from "../store/observable";
import { models } from "../store/server";
import { snippet } from "../panels/snippet";
import { chatFields, settings } from "../store/settings";
import { hasKey } from "../wire/client";
import { CopyButton } from "../ui/copy_button";
import { saveFile } from "../ui/save_file";
import { compact, money } from "../ui/format";
import { messagesBefore, siblings, type Conversation, type Message, type Outcome } from "./conversation";
import { cost, formatReading } from "./meter";
import { findRecording, recordings, retry, send, showBranch } from "./session";

const FOLD_CHARS = 2000;
const HEAD_CHARS = 200;

interface Props {
  message: Message;
  conversation: Conversation;
}

export function MessageView({ message, conversation }: Props) {
  return message.role === "assistant" ? (
    <AnswerView message={message} conversation={conversation} />
  ) : (
    <QuestionView message={message} conversation={conversation} />
  );
}

function QuestionView({ message, conversation }: Props) {
  const [isEditing, setEditing] = useState(false);
  const edit = useRef<HTMLButtonElement>(null);
  const wasEditing = useRef(false);
  useLayoutEffect(() => {
    if (wasEditing.current && !isEditing) edit.current?.focus();
    wasEditing.current = isEditing;
  }, [isEditing]);
  if (isEditing) return <Editing message={message} onDone={() => setEditing(false)} />;
  return (
    <article class="message user" aria-label="You">
      <Said text={message.content} />
      <div class="verbs">
        <Branches message={message} conversation={conversation} />
        <button ref={edit} type="button" class="ghost" onClick={() => setEditing(true)}>
          Edit
        </button>
        <CopyButton text={message.content} label="Copy message" />
      </div>
    </article>
  );
}

/** A long message, with a file for example, is folded. */
function Said({ text }: { text: string }) {
  if (text.length <= FOLD_CHARS) return <p class="said">{text}</p>;
  return (
    <details class="said">
      <summary>
        {text.slice(0, HEAD_CHARS)}… <span class="faint">{compact(text.length)} characters</span>
      </summary>
      {text}
    </details>
  );
}

function Editing({ message, onDone }: { message: Message; onDone: () => void }) {
  const [text, setText] = useState(message.content);
  const field = useRef<HTMLTextAreaElement>(null);
  useLayoutEffect(() => field.current?.focus(), []);
  const submit = () => {
    onDone();
    void send(text, message.parent);
  };
  return (
    <form
      class="message user editing"
      onSubmit={(event) => {
        event.preventDefault();
        submit();
      }}
    >
      <textarea
        ref={field}
        aria-label="Edit message"
        value={text}
        rows={4}
        onInput={(event) => setText(event.currentTarget.value)}
        onKeyDown={(event) => {
          if (event.key !== "Escape") return;
          event.stopPropagation();
          onDone();
        }}
      />
      <div class="verbs">
        <button type="submit" class="small">
          Send as a branch
        </button>
        <button type="button" class="ghost" onClick={onDone}>
          Cancel
        </button>
      </div>
    </form>
  );
}

function AnswerView({ message, conversation }: Props) {
  const [isReplay, setReplay] = useState(false);
  const { outcome } = message;
  return (
    <article class="message assistant" aria-label="Answer">
      {message.reasoning && (
        <details class="reasoning">
          <summary>Thinking</summary>
          <p>{message.reasoning}</p>
        </details>
      )}
      {isReplay ? <Replay id={message.id} /> : <Markdown text={message.content} />}
      {message.calls?.map((call) => (
        <pre class="call" key={call.id}>{`${call.function.name}(${call.function.arguments})`}</pre>
      ))}
      {outcome && <OutcomeLine outcome={outcome} />}
      <div class="verbs">
        <Branches message={message} conversation={conversation} />
        <button type="button" class="ghost" aria-pressed={isReplay} onClick={() => setReplay(!isReplay)}>
          Diffusion
        </button>
        <button type="button" class="ghost" onClick={() => void retry(message)}>
          Retry
        </button>
        <CopyButton text={message.content} label="Copy answer" />
        <CopyButton text={() => curlOf(message, conversation)} label="Copy as cURL" face="cURL" />
      </div>
    </article>
  );
}

/** The request of an answer as a command. */
function curlOf(message: Message, conversation: Conversation): string {
  const fields = message.outcome?.sent ?? chatFields(settings.get());
  const body = { ...fields, messages: messagesBefore(conversation, message) };
  return snippet("curl", location.origin, { path: "/v1/chat/completions", body, at: 0, hadKey: hasKey() });
}

function Replay({ id }: { id: string }) {
  const known = useStore(recordings);
  const { canvasLen } = useStore(settings);
  useEffect(() => void findRecording(id), [id]);
  const recording = known.get(id);
  if (!recording?.frames.length) return <p class="faint">No frames were kept of this answer.</p>;
  return (
    <>
      <Scrubber recording={recording} canvasLen={canvasLen} />
      <button type="button" class="ghost" onClick={() => saveFile(`${id}.qsr.json`, JSON.stringify(pack(recording)))}>
        Save recording
      </button>
    </>
  );
}

function OutcomeLine({ outcome }: { outcome: Outcome }) {
  const price = useStore(models).find((model) => model.id === outcome.model);
  if (outcome.error) return <p class="trouble">{outcome.error}</p>;
  const { usage, seconds } = outcome;
  if (!usage) return <p class="meter">{outcome.state}</p>;
  const forwards = usage.quicksilver?.forwards ?? 0;
  const tokens = usage.completion_tokens;
  const reading = {
    tokens,
    seconds,
    forwards,
    tokensPerS: tokens / seconds,
    tokensPerForward: tokens / Math.max(1, forwards),
  };
  const notes = [formatReading(reading), `${usage.prompt_tokens} in`, money(cost(usage, price)), outcome.model];
  if (outcome.finish === "length") notes.push("cut at the token limit");
  return <p class="meter mono">{notes.join(" · ")}</p>;
}

function Branches({ message, conversation }: Props) {
  const all = siblings(conversation, message);
  const at = all.findIndex(({ id }) => id === message.id);
  if (all.length < 2) return null;
  const step = (offset: number) => {
    const other = all[at + offset];
    if (other) showBranch(other.id);
  };
  return (
    <span class="branches">
      <button type="button" class="ghost" aria-label="Previous branch" disabled={at === 0} onClick={() => step(-1)}>
        ‹
      </button>
      <span aria-label={`Branch ${at + 1} of ${all.length}`} role="img">
        {at + 1}/{all.length}
      </span>
      <button
        type="button"
        class="ghost"
        aria-label="Next branch"
        disabled={at === all.length - 1}
        onClick={() => step(1)}
      >
        ›
      </button>
    </span>
  );
}
