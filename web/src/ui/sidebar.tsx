// The side of the page: panels, conversations, theme, and which model on which device answers.

import { startConversation } from "../chat/session";
import { useStore } from "../store/observable";
import { server } from "../store/server";
import { change, settings, type Settings } from "../store/settings";
import { ConversationList } from "./conversation_list";
import { go, PANELS, route, TITLES } from "./route";
import { showShortcuts } from "./shortcuts";

export function Sidebar({ onPick }: { onPick: () => void }) {
  return (
    <aside id="sidebar" aria-label="Navigation">
      <p class="brand">
        <span class="drop" aria-hidden="true" />
        quicksilver
        <button type="button" class="ghost close" aria-label="Close navigation" onClick={onPick}>
          ×
        </button>
      </p>
      <Panels onPick={onPick} />
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
      <ConversationList onPick={onPick} />
      <Foot />
    </aside>
  );
}

function Panels({ onPick }: { onPick: () => void }) {
  const shown = useStore(route);
  return (
    <nav aria-label="Panels">
      {PANELS.map((panel) => (
        <a key={panel} href={`#/${panel}`} aria-current={panel === shown ? "page" : undefined} onClick={onPick}>
          {TITLES[panel]}
        </a>
      ))}
    </nav>
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
