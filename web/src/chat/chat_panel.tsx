// The chat: messages, the answer in the making, the composer, and the controls beside it.

import { useEffect, useRef } from "preact/hooks";
import { useStore } from "../store/observable";
import { settings } from "../store/settings";
import { Answering } from "./answering";
import { Composer } from "./composer";
import { Controls } from "./controls";
import { path } from "./conversation";
import { MessageView } from "./message";
import { current, running, send } from "./session";

const OPENERS = [
  "Explain how a diffusion language model writes.",
  "Write a Python function that checks if a word is a palindrome.",
  "Give me three names for a silver-grey cat.",
];

export function ChatPanel() {
  const conversation = useStore(current);
  const run = useStore(running);
  const messages = path(conversation);
  const scroller = useRef<HTMLDivElement>(null);
  useEffect(() => followEnd(scroller.current), [messages.length, run]);
  return (
    <div class="chat">
      <div class="thread">
        <div class="messages" ref={scroller} role="log" aria-label="Conversation" aria-live="off" tabIndex={0}>
          {messages.length === 0 && !run && <Welcome />}
          {messages.map((message) => (
            <MessageView key={message.id} message={message} conversation={conversation} />
          ))}
          {run && <Answering run={run} scroller={scroller} />}
        </div>
        <p class="hidden" role="status">
          {run ? "Answering" : messages.length > 0 ? "Answer ready" : ""}
        </p>
        <Composer />
      </div>
      <Controls />
    </div>
  );
}

function Welcome() {
  const { model } = useStore(settings);
  return (
    <section class="welcome" aria-label="Start here">
      <h2>Watch an answer resolve</h2>
      <p>
        Every cell is a token. Masks turn to drafts, drafts are shaded by confidence, and committed text stands in full
        ink. Ask anything, or start with one of these:
      </p>
      {OPENERS.map((text) => (
        <button type="button" class="opener" disabled={model === ""} onClick={() => void send(text)}>
          {text}
        </button>
      ))}
    </section>
  );
}

export function followEnd(element: HTMLElement | null): void {
  if (element) element.scrollTop = element.scrollHeight;
}
