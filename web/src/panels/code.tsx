// The code panel: an editor with completions and next edits, and applying an edit to a file.

import { useState } from "preact/hooks";
import { ApplyTab } from "./apply";
import { EditorTab } from "./editor_tab";

const TABS = { editor: "Editor", apply: "Apply edit" };
type Tab = keyof typeof TABS;

export function CodePanel() {
  const [tab, setTab] = useState<Tab>("editor");
  return (
    <div class="panel">
      <div class="tabs" role="tablist" aria-label="Code tasks">
        {(Object.keys(TABS) as Tab[]).map((name) => (
          <button
            key={name}
            type="button"
            role="tab"
            id={`tab-${name}`}
            aria-selected={tab === name}
            aria-controls="code-tab"
            tabIndex={tab === name ? 0 : -1}
            onClick={() => setTab(name)}
            onKeyDown={(event) => {
              if (event.key === "ArrowRight" || event.key === "ArrowLeft")
                setTab(step(tab, event.key === "ArrowRight" ? 1 : -1));
            }}
          >
            {TABS[name]}
          </button>
        ))}
      </div>
      <div id="code-tab" role="tabpanel" aria-labelledby={`tab-${tab}`}>
        {tab === "editor" && <EditorTab />}
        {tab === "apply" && <ApplyTab />}
      </div>
    </div>
  );
}

function step(tab: Tab, by: number): Tab {
  const names = Object.keys(TABS) as Tab[];
  const next = names[(names.indexOf(tab) + by + names.length) % names.length] ?? tab;
  document.getElementById(`tab-${next}`)?.focus();
  return next;
}
