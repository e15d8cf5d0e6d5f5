// Boot: load what the browser keeps, ask the server who it is, draw the page.

import { render } from "preact";
import { loadConversations } from "./chat/session";
import { loadEntries } from "./store/ledger";
import { loadPresets } from "./store/presets";
import { meetServer } from "./store/server";
import { loadSettings } from "./store/settings";
import { App } from "./ui/app";
import { followTheme } from "./ui/theme";
import "./style/base.css";
import "./style/layout.css";
import "./style/chat.css";
import "./style/diffusion.css";
import "./style/panels.css";
import "./style/code.css";

async function boot(): Promise<void> {
  // Loaded before the page is drawn: a later load would undo what the user has changed meanwhile.
  await Promise.all([loadSettings(), loadPresets()]);
  followTheme();
  const host = document.getElementById("app");
  if (host) render(<App />, host);
  await Promise.all([loadConversations(), loadEntries(), meetServer()]);
}

void boot();
