// A new key: its name, what it may do (never more than its maker), its budget and its end.

import { useState } from "preact/hooks";
import type { KeyDraft } from "../wire/account";

const DAY_S = 86_400;
const ENDS: Record<string, number | null> = { never: null, "in a day": DAY_S, "in 30 days": 30 * DAY_S };
const OFFERED = ["inference", "usage", "keys"];

export function KeyForm({ scopes, onMake }: { scopes: string[]; onMake: (draft: KeyDraft) => void }) {
  const offered = OFFERED.filter((scope) => scopes.includes(scope));
  const [name, setName] = useState("");
  const [chosen, setChosen] = useState(offered.filter((scope) => scope !== "keys"));
  const [budget, setBudget] = useState("");
  const [end, setEnd] = useState("never");
  const make = () => {
    const seconds = ENDS[end] ?? null;
    const draft: KeyDraft = { name: name.trim(), scopes: chosen };
    onMake({
      ...draft,
      ...(budget === "" ? {} : { budget }),
      ...(seconds === null ? {} : { expires_in_seconds: seconds }),
    });
    setName("");
  };
  return (
    <form
      class="keyform"
      onSubmit={(event) => {
        event.preventDefault();
        make();
      }}
    >
      <label>
        Name
        <input value={name} maxLength={128} onInput={(event) => setName(event.currentTarget.value)} />
      </label>
      <label>
        Budget in credits
        <input
          inputMode="decimal"
          placeholder="none"
          pattern="[0-9]*(\.[0-9]{1,6})?"
          value={budget}
          onInput={(event) => setBudget(event.currentTarget.value.trim())}
        />
      </label>
      <label>
        Ends
        <select value={end} onChange={(event) => setEnd(event.currentTarget.value)}>
          {Object.keys(ENDS).map((each) => (
            <option key={each}>{each}</option>
          ))}
        </select>
      </label>
      <fieldset class="choices">
        <legend>Rights</legend>
        {offered.map((scope) => (
          <label key={scope} class="inline">
            <input
              type="checkbox"
              checked={chosen.includes(scope)}
              onChange={(event) =>
                setChosen(event.currentTarget.checked ? [...chosen, scope] : chosen.filter((each) => each !== scope))
              }
            />
            {scope}
          </label>
        ))}
      </fieldset>
      <button type="submit" class="primary" disabled={name.trim() === "" || chosen.length === 0}>
        Make key
      </button>
    </form>
  );
}
