// The frame of the page: navigation at the side, one panel in the middle, keys that work everywhere.

import type { VNode } from "preact";
import { useEffect, useState } from "preact/hooks";
import { ChatPanel } from "../chat/chat_panel";
import { stopAll } from "../chat/run";
import { startConversation } from "../chat/session";
import { RacePanel } from "../diffusion/race";
import { ApiPanel } from "../panels/api";
import { CodePanel } from "../panels/code";
import { KeysPanel } from "../panels/keys";
import { StructuredPanel } from "../panels/structured";
import { ToolsPanel } from "../panels/tools";
import { UsagePanel } from "../panels/usage";
import { useStore } from "../store/observable";
import { meetServer, trouble } from "../store/server";
import { keyWanted } from "../wire/client";
import { go, route, TITLES, type PanelName } from "./route";
import { Shortcuts, showShortcuts } from "./shortcuts";
import { Sidebar } from "./sidebar";

const VIEWS: Record<PanelName, () => VNode> = {
  chat: ChatPanel,
  race: RacePanel,
  structured: StructuredPanel,
  tools: ToolsPanel,
  code: CodePanel,
  usage: UsagePanel,
  api: ApiPanel,
  keys: KeysPanel,
};

export function App() {
  const panel = useStore(route);
  const [isOpen, setOpen] = useState(false);
  useEffect(() => {
    document.addEventListener("keydown", globalKey);
    return () => document.removeEventListener("keydown", globalKey);
  }, []);
  useEffect(() => setOpen(false), [panel]);
  const View = VIEWS[panel];
  return (
    <div class={isOpen ? "app open" : "app"}>
      <a class="skip" href="#main" onClick={skip}>
        Skip to content
      </a>
      <Sidebar onPick={() => setOpen(false)} />
      <main id="main" tabIndex={-1} aria-label={TITLES[panel]}>
        <header class="bar">
          <button
            type="button"
            class="ghost menu"
            aria-expanded={isOpen}
            aria-controls="sidebar"
            onClick={() => setOpen(!isOpen)}
          >
            ☰<span class="hidden">Menu</span>
          </button>
          <h1>{TITLES[panel]}</h1>
        </header>
        <Trouble />
        <View />
      </main>
      <Shortcuts />
    </div>
  );
}

function Trouble() {
  const message = useStore(trouble);
  const isKeyWanted = useStore(keyWanted);
  return message === null ? null : (
    <p class="trouble" role="alert">
      {message}{" "}
      <button type="button" class="small" onClick={() => (isKeyWanted ? go("keys") : void meetServer())}>
        {isKeyWanted ? "Give a key" : "Try again"}
      </button>
    </p>
  );
}

/** The fragment belongs to the panels, so the skip link moves focus itself. */
function skip(event: Event): void {
  event.preventDefault();
  document.getElementById("main")?.focus();
}

function globalKey(event: KeyboardEvent): void {
  if (event.key === "Escape") stopAll();
  if ((event.ctrlKey || event.metaKey) && event.key === "k") {
    event.preventDefault();
    startConversation();
    go("chat");
    focusComposer();
  }
  if (event.key === "?" && !isTyping(event.target)) showShortcuts();
  if (event.key === "/" && !isTyping(event.target)) {
    event.preventDefault();
    focusComposer();
  }
}

function focusComposer(): void {
  requestAnimationFrame(() => document.querySelector<HTMLElement>("[data-composer]")?.focus());
}

function isTyping(target: EventTarget | null): boolean {
  return target instanceof HTMLElement && /^(INPUT|TEXTAREA|SELECT)$/u.test(target.tagName);
}
