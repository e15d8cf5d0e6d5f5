// Which panel is shown: the fragment of the address, so that back and reload work. Nothing else goes into a URL.

import { Store } from "../store/observable";

export const PANELS = ["chat", "race", "compare", "structured", "tools", "code", "tune", "usage", "api", "keys", "docs"] as const;
export type PanelName = (typeof PANELS)[number];

export const TITLES: Record<PanelName, string> = {
  chat: "Chat",
  race: "Race",
  compare: "Compare",
  structured: "Structured output",
  tools: "Tools",
  code: "Code",
  tune: "Tune",
  usage: "Usage",
  api: "API",
  keys: "Keys",
  docs: "Docs",
};

export const route = new Store<PanelName>(read());

/** What follows the panel's name in the fragment: the page of the Docs panel. */
export const detail = new Store<string>(readDetail());

window.addEventListener("hashchange", () => {
  detail.set(readDetail());
  route.set(read());
});

export function go(panel: PanelName): void {
  location.hash = `#/${panel}`;
}

function read(): PanelName {
  const name = location.hash.slice(2).split("/")[0];
  return PANELS.find((panel) => panel === name) ?? "chat";
}

function readDetail(): string {
  return location.hash.slice(2).split("/").slice(1).join("/");
}
