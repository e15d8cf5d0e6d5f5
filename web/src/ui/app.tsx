// The frame of the page: navigation at the side, one panel in the middle, keys that work everywhere.

import type { VNode } from "preact";
import { useLayoutEffect, useRef, useState } from "preact/hooks";
import { ChatPanel } from "../chat/chat_panel";
import { focusComposer } from "../chat/composer";
import { stopAll } from "../chat/run";
import { startConversation } from "../chat/session";
import { RacePanel } from "../diffusion/race";
import { ApiPanel } from "../panels/api";
import { CodePanel } from "../panels/code";
import { ComparePanel } from "../panels/compare";
import { DocsPanel } from "../panels/docs";
import { KeyCard, KeysPanel } from "../panels/keys";
import { StructuredPanel } from "../panels/structured";
import { ToolsPanel } from "../panels/tools";
import { TunePanel } from "../panels/tune";
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
  compare: ComparePanel,
  structured: StructuredPanel,
  tools: ToolsPanel,
  code: CodePanel,
  tune: TunePanel,
  usage: UsagePanel,
  api: ApiPanel,
  keys: KeysPanel,
  docs: DocsPanel,
};

export function App() {
  const panel = useStore(route);
  const isKeyWanted = useStore(keyWanted);
  const [isOpen, setOpen] = useDrawer(panel);
  useLayoutEffect(() => {
    document.addEventListener("keydown", globalKey);
    return () => document.removeEventListener("keydown", globalKey);
  }, []);
  const View = VIEWS[panel];
  return (
    <div class={isOpen ? "app open" : "app"}>
      <a class="skip" href="#main" onClick={skip}>
        Skip to content
      </a>
      <Sidebar onPick={() => setOpen(false)} />
      {isOpen && <div class="scrim" aria-hidden="true" onClick={() => setOpen(false)} />}
      <main id="main" tabIndex={-1} aria-label={TITLES[panel]} inert={isOpen}>
        <header class="bar">
          <button
            type="button"
            class="ghost menu"
            aria-expanded={isOpen}
            aria-controls="sidebar"
            onClick={() => setOpen(true)}
          >
            ☰<span class="hidden">Menu</span>
          </button>
          <h1>{TITLES[panel]}</h1>
        </header>
        {!isKeyWanted && <Trouble />}
        {isKeyWanted && panel !== "keys" && panel !== "docs" ? <KeyCard /> : <View />}
      </main>
      <Shortcuts />
    </div>
  );
}

/**
 * The navigation on a narrow screen. Focus moves into it when it opens and back to the button when it closes, with the
 * same change of the page: after the next frame it could be in a field that is being typed in.
 */
function useDrawer(panel: PanelName): [boolean, (isOpen: boolean) => void] {
  const [isOpen, setOpen] = useState(false);
  const wasOpen = useRef(false);
  useLayoutEffect(() => setOpen(false), [panel]);
  useLayoutEffect(() => {
    if (isOpen) document.querySelector<HTMLElement>("#sidebar .close")?.focus();
    else if (wasOpen.current) document.querySelector<HTMLElement>(".menu")?.focus();
    wasOpen.current = isOpen;
    if (!isOpen) return;
    const close = (event: Event) => {
      const isOther = event instanceof KeyboardEvent && event.key !== "Escape";
      if (!isOther && !document.querySelector("dialog[open]")) setOpen(false);
    };
    const wide = matchMedia("(min-width: 761px)");
    document.addEventListener("keydown", close);
    wide.addEventListener("change", close);
    return () => {
      document.removeEventListener("keydown", close);
      wide.removeEventListener("change", close);
    };
  }, [isOpen]);
  return [isOpen, setOpen];
}

function Trouble() {
  const message = useStore(trouble);
  return message === null ? null : (
    <p class="trouble" role="alert">
      {message}{" "}
      <button type="button" class="small" onClick={() => void meetServer()}>
        Try again
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
  // Escape closes what lies over the page first.
  if (event.key === "Escape" && !document.querySelector("dialog[open], .app.open")) stopAll();
  if ((event.ctrlKey || event.metaKey) && event.key === "k") {
    event.preventDefault();
    startConversation();
    go("chat");
    focusComposer();
  }
  if (event.key === "?" && !isTyping(event)) showShortcuts();
  if (event.key === "/" && !isTyping(event)) {
    event.preventDefault();
    go("chat");
    focusComposer();
  }
}

/** The path leads into shadow roots, where the editors are; the target of the event stays outside. */
function isTyping(event: KeyboardEvent): boolean {
  const target = event.composedPath()[0];
  if (!(target instanceof HTMLElement)) return false;
  return target.isContentEditable || /^(INPUT|TEXTAREA|SELECT)$/u.test(target.tagName);
}
