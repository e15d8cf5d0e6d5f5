// Keys: the key this page calls with. It is held in memory while the page is open and sent in a header, nowhere else.

import { useState } from "preact/hooks";
import { useStore } from "../store/observable";
import { meetServer, models, trouble } from "../store/server";
import { hasKey, holdKey } from "../wire/client";

export function KeysPanel() {
  const [text, setText] = useState("");
  const [isHeld, setHeld] = useState(hasKey());
  const problem = useStore(trouble);
  const numModels = useStore(models).length;
  const hold = async (key: string) => {
    holdKey(key);
    setText("");
    setHeld(hasKey());
    await meetServer();
  };
  return (
    <form
      class="panel"
      autocomplete="off"
      onSubmit={(event) => {
        event.preventDefault();
        void hold(text);
      }}
    >
      <p class="lead">
        This server keeps accounts. Give an API key to use it here; it is forgotten when the page is closed or reloaded.
        Keys are made and revoked with <code>quicksilver keys</code>.
      </p>
      <label>
        API key
        <input
          type="password"
          autocomplete="off"
          placeholder="qs-…"
          value={text}
          onInput={(event) => setText(event.currentTarget.value)}
        />
      </label>
      <div class="row">
        <button type="submit" class="primary" disabled={text.trim() === ""}>
          Use this key
        </button>
        <button type="button" disabled={!isHeld} onClick={() => void hold("")}>
          Forget it
        </button>
      </div>
      <p role="status">{isHeld && (problem ?? `Key accepted: ${numModels} models to choose from.`)}</p>
    </form>
  );
}
