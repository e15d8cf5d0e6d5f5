// The side of the page: panels, conversations, theme, and which model on which device answers.

import { useState } from "preact/hooks";
import {
  conversations,
  current,
  deleteConversation,
  openConversation,
  rename,
  startConversation,
} from "../chat/session";
import type { Conversation } from "../chat/conversation";
import { useStore } from "../store/observable";
import { server } from "../store/server";
import { change, settings, type Settings } from "../store/settings";
import { go, PANELS, route, TITLES } from "./route";
import { showShortcuts } from "./shortcuts";

export function Sidebar({ onPick }: { onPick: () => void }) {
  return (
    <aside id="sidebar" aria-label="Navigation">
      <p class="brand">
        <span class="drop" aria-hidden="true" />
        quicksilver
      </p>
      <Panels />
      <button
        type="button"
        class="new"
        aria-keyshortcuts="Control+K"
        onClick={() => {
          startConversation();
          go("chat");
          onPick();
        }}
      >
        New conversation
      </button>
      <Conversations onPick={onPick} />
      <Foot />
    </aside>
  );
}

function Panels() {
  const shown = useStore(route);
  return (
    <nav aria-label="Panels">
      {PANELS.map((panel) => (
        <a key={panel} href={`#/${panel}`} aria-current={panel === shown ? "page" : undefined}>
          {TITLES[panel]}
        </a>
      ))}
    </nav>
  );
}

function Conversations({ onPick }: { onPick: () => void }) {
  const known = useStore(conversations);
  const open = useStore(current);
  return (
    <ul class="conversations" aria-label="Conversations">
      {known.map((conversation) => (
        <Entry key={conversation.id} conversation={conversation} isOpen={conversation.id === open.id} onPick={onPick} />
      ))}
    </ul>
  );
}

interface EntryProps {
  conversation: Conversation;
  isOpen: boolean;
  onPick: () => void;
}

function Entry({ conversation, isOpen, onPick }: EntryProps) {
  const [isNaming, setNaming] = useState(false);
  const title = conversation.title || "Untitled";
  const pick = () => {
    openConversation(conversation);
    go("chat");
    onPick();
  };
  if (isNaming) return <Naming conversation={conversation} onDone={() => setNaming(false)} />;
  return (
    <li>
      <button
        type="button"
        class="title"
        aria-current={isOpen ? "true" : undefined}
        onClick={pick}
        onDblClick={() => setNaming(true)}
      >
        {title}
      </button>
      <button type="button" class="ghost" aria-label={`Rename ${title}`} onClick={() => setNaming(true)}>
        ✎
      </button>
      <button
        type="button"
        class="ghost"
        aria-label={`Delete ${title}`}
        onClick={() => void deleteConversation(conversation.id)}
      >
        ×
      </button>
    </li>
  );
}

function Naming({ conversation, onDone }: { conversation: Conversation; onDone: () => void }) {
  const finish = (event: Event) => {
    rename(conversation.id, (event.currentTarget as HTMLInputElement).value);
    onDone();
  };
  return (
    <li>
      <input
        aria-label="Title"
        value={conversation.title}
        ref={(element) => element?.focus()}
        onBlur={finish}
        onKeyDown={(event) => {
          if (event.key === "Enter") finish(event);
          if (event.key === "Escape") onDone();
        }}
      />
    </li>
  );
}

function Foot() {
  const info = useStore(server);
  const { theme } = useStore(settings);
  return (
    <footer>
      <label class="inline">
        Theme
        <select value={theme} onChange={(event) => change({ theme: event.currentTarget.value as Settings["theme"] })}>
          <option value="auto">auto</option>
          <option value="light">light</option>
          <option value="dark">dark</option>
        </select>
      </label>
      <button type="button" class="ghost" aria-keyshortcuts="?" onClick={showShortcuts}>
        Keyboard
      </button>
      {info && (
        <p class="faint">
          {info.model} on {info.device} · {info.version}
        </p>
      )}
    </footer>
  );
}
