// Which panel is shown: the fragment of the address, so that back and reload work. Nothing else goes into a URL.

import { Store } from "../store/observable";

export const PANELS = ["chat", "race", "structured", "tools", "code", "usage", "api", "keys"] as const;
export type PanelName = (typeof PANELS)[number];

export const TITLES: Record<PanelName, string> = {
  chat: "Chat",
  race: "Race",
  structured: "Structured output",
  tools: "Tools",
  code: "Code",
  usage: "Usage",
  api: "API",
  keys: "Keys",
};

export const route = new Store<PanelName>(read());

window.addEventListener("hashchange", () => route.set(read()));

export function go(panel: PanelName): void {
  location.hash = `#/${panel}`;
}

function read(): PanelName {
  const name = location.hash.slice(2);
  return PANELS.find((panel) => panel === name) ?? "chat";
}
