// The conversation's system prompt, with presets to choose from and to save.

import { useState } from "preact/hooks";
import { useStore } from "../store/observable";
import { BUILT_IN, deletePreset, ownPresets, savePreset } from "../store/presets";
import { current, setSystem } from "./session";

const UNSAVED = "(unsaved)";

export function SystemPrompt() {
  const { system } = useStore(current);
  const own = useStore(ownPresets);
  const all = [...own, ...BUILT_IN];
  const chosen = all.find((preset) => preset.system === system);
  const isOwn = own.some(({ name }) => name === chosen?.name);
  return (
    <>
      <label>
        Preset
        <select
          value={chosen?.name ?? UNSAVED}
          onChange={(event) => setSystem(all.find(({ name }) => name === event.currentTarget.value)?.system ?? system)}
        >
          {!chosen && <option>{UNSAVED}</option>}
          {all.map(({ name }) => (
            <option key={name}>{name}</option>
          ))}
        </select>
      </label>
      <label>
        System prompt
        <textarea rows={4} value={system} onInput={(event) => setSystem(event.currentTarget.value)} />
      </label>
      {!chosen && <SavePreset system={system} />}
      {chosen && isOwn && (
        <button type="button" class="small danger" onClick={() => deletePreset(chosen.name)}>
          Delete preset {chosen.name}
        </button>
      )}
    </>
  );
}

function SavePreset({ system }: { system: string }) {
  const [name, setName] = useState("");
  const title = name.trim();
  const isTaken = BUILT_IN.some((preset) => preset.name === title);
  const save = () => {
    if (title !== "" && !isTaken) savePreset({ name: title, system });
  };
  return (
    <div class="row">
      <input
        class="short"
        aria-label="Name of the preset"
        placeholder="Name"
        maxLength={60}
        value={name}
        onInput={(event) => setName(event.currentTarget.value)}
        onKeyDown={(event) => event.key === "Enter" && save()}
      />
      <button type="button" class="small" disabled={title === "" || isTaken} onClick={save}>
        Save preset
      </button>
    </div>
  );
}
