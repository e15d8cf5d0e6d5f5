// The conversations of this browser: search, open, rename, delete, and all of them as a file.

import { useRef, useState } from "preact/hooks";
import { readArchive, writeArchive } from "../chat/archive";
import type { Conversation } from "../chat/conversation";
import { search } from "../chat/search";
import { addConversations, conversations, current, deleteConversation, openConversation, rename } from "../chat/session";
import { useStore } from "../store/observable";
import { go } from "./route";
import { saveFile } from "./save_file";

export function ConversationList({ onPick }: { onPick: () => void }) {
  const known = useStore(conversations);
  const open = useStore(current);
  const [query, setQuery] = useState("");
  const found = search(known, query);
  return (
    <>
      <input
        type="search"
        aria-label="Search conversations"
        placeholder="Search"
        value={query}
        onInput={(event) => setQuery(event.currentTarget.value)}
      />
      <ul class="conversations" aria-label="Conversations">
        {found.map((conversation) => (
          <Entry key={conversation.id} conversation={conversation} isOpen={conversation.id === open.id} onPick={onPick} />
        ))}
      </ul>
      {query && found.length === 0 && <p class="faint">No conversation has these words.</p>}
      <Archive listed={found} />
    </>
  );
}

/** Exports what the list shows; imports beside what is there. */
function Archive({ listed }: { listed: Conversation[] }) {
  const file = useRef<HTMLInputElement>(null);
  const [result, setResult] = useState<{ text: string; isProblem: boolean } | null>(null);
  const read = async (chosen: File | undefined) => {
    if (!chosen) return;
    try {
      const added = readArchive(await chosen.text());
      addConversations(added);
      setResult({ text: `${added.length} imported.`, isProblem: false });
    } catch (error) {
      setResult({ text: (error as Error).message, isProblem: true });
    }
    if (file.current) file.current.value = "";
  };
  return (
    <div class="archive">
      <button
        type="button"
        class="ghost"
        disabled={listed.length === 0}
        onClick={() => saveFile("conversations.json", writeArchive(listed))}
      >
        Export
      </button>
      <button type="button" class="ghost" onClick={() => file.current?.click()}>
        Import
      </button>
      <input
        ref={file}
        type="file"
        hidden
        aria-label="File of conversations"
        accept="application/json,.json"
        onChange={(event) => void read(event.currentTarget.files?.[0])}
      />
      {result && (
        <p class={result.isProblem ? "trouble" : "faint"} role={result.isProblem ? "alert" : "status"}>
          {result.text}
        </p>
      )}
    </div>
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
