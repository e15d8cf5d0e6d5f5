// The chat: messages, the answer in the making, the composer, and the controls beside it.

import { useEffect, useRef } from "preact/hooks";
import { useStore } from "../store/observable";
import { Answering } from "./answering";
import { Composer } from "./composer";
import { Controls } from "./controls";
import { path } from "./conversation";
import { MessageView } from "./message";
import { current, running } from "./session";
import { Welcome } from "./welcome";

export function ChatPanel() {
  const conversation = useStore(current);
  const run = useStore(running);
  const messages = path(conversation);
  const scroller = useRef<HTMLDivElement>(null);
  useEffect(() => {
    if (messages.length > 0) followEnd(scroller.current);
  }, [messages.length, run]);
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

export function followEnd(element: HTMLElement | null): void {
  if (element) element.scrollTop = element.scrollHeight;
}
