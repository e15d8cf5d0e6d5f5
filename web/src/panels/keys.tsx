// Keys: the key this page calls with, what it may do, and the keys below it. A key is held in memory while the page is
// open and sent in a header, nowhere else; the secret of a new one is shown once and kept nowhere.

import { useState } from "preact/hooks";
import { useStore } from "../store/observable";
import { account, meetServer, server, trouble } from "../store/server";
import { credits } from "../ui/format";
import type { Account, Gauge } from "../wire/account";
import { hasKey, holdKey, keyWanted } from "../wire/client";
import { KeyList } from "./key_list";

export function KeysPanel() {
  const info = useStore(server);
  const isKeyWanted = useStore(keyWanted);
  const own = useStore(account);
  if (info && !info.accounts && !isKeyWanted) return <NoAccounts />;
  return (
    <div class="panel">
      <OwnKey />
      {own && <Rights own={own} />}
      {own?.scopes.includes("keys") && <KeyList own={own} />}
    </div>
  );
}

/** In place of a panel that cannot work without a key. */
export function KeyCard() {
  return (
    <section class="panel key-card" aria-labelledby="key-card-title">
      <h2 id="key-card-title">This server needs a key</h2>
      <OwnKey />
      <p class="faint">
        A key begins with <code>qs-</code>. The operator of the server creates one with{" "}
        <code>quicksilver keys create NAME --project ID</code>, or in the Keys panel.
      </p>
    </section>
  );
}

function NoAccounts() {
  return (
    <div class="panel prose">
      <p class="lead">This server asks for no keys: it keeps no accounts, and listens on this machine alone.</p>
      <p>To hand out keys with budgets, limits and usage of their own, start it with accounts on:</p>
      <pre class="call" tabIndex={0} aria-label="Command that starts the server with accounts">
        quicksilver serve --accounts
      </pre>
      <p>
        The first start prints an admin key, once. <code>quicksilver orgs create NAME</code> and{" "}
        <code>quicksilver keys create NAME --project ID</code> create the first keys. A key with the scope{" "}
        <code>keys</code> can create more of them here.
      </p>
    </div>
  );
}

function OwnKey() {
  const [text, setText] = useState("");
  const [isHeld, setHeld] = useState(hasKey());
  const problem = useStore(trouble);
  const hold = async (key: string) => {
    holdKey(key);
    setText("");
    await meetServer();
    setHeld(hasKey());
  };
  return (
    <form
      autocomplete="off"
      onSubmit={(event) => {
        event.preventDefault();
        void hold(text);
      }}
    >
      <p class="lead">
        This server keeps accounts. Give an API key to use it here; it is forgotten when the page is closed or reloaded.
      </p>
      <div class="row">
        <label class="grow">
          API key
          <input
            type="password"
            autocomplete="off"
            placeholder="qs-…"
            value={text}
            onInput={(event) => setText(event.currentTarget.value)}
          />
        </label>
        <button type="submit" class="primary" disabled={text.trim() === ""}>
          Use this key
        </button>
        <button type="button" disabled={!isHeld} onClick={() => void hold("")}>
          Forget it
        </button>
      </div>
      {isHeld && problem ? (
        <p class="trouble" role="alert">
          {problem}
        </p>
      ) : (
        <p role="status">{isHeld && "Key accepted."}</p>
      )}
    </form>
  );
}

function Rights({ own }: { own: Account }) {
  const { requests, input_tokens: input, output_tokens: output } = own.rate_limits;
  const facts: [string, string][] = [
    ["Key", `${own.key.name} (${own.key.redacted_value})`],
    ["Project", `${own.project.name}, ${own.organization.name}`],
    ["Rights", own.scopes.join(", ")],
    ["Credits left", own.balance === null ? "not bounded" : credits(own.balance)],
    ["Requests a minute", gauge(requests)],
    ["Input tokens a minute", gauge(input)],
    ["Output tokens a minute", gauge(output)],
  ];
  return (
    <section aria-label="This key">
      <h2>This key</h2>
      <dl class="facts">
        {facts.map(([name, value]) => (
          <div key={name}>
            <dt>{name}</dt>
            <dd>{value}</dd>
          </div>
        ))}
      </dl>
    </section>
  );
}

function gauge(state: Gauge | null): string {
  return state === null ? "not limited" : `${state.remaining} of ${state.limit} left`;
}
