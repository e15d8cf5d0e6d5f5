// The keys below the caller's own: made, rotated and revoked here. Each secret is shown once.

import { useEffect, useState } from "preact/hooks";
import { CopyButton } from "../ui/copy_button";
import { credits, day } from "../ui/format";
import { listKeys, makeKey, revokeKey, rotateKey, type Account, type ApiKey, type NewKey } from "../wire/account";
import { KeyForm } from "./key_form";

export function KeyList({ own }: { own: Account }) {
  const [keys, setKeys] = useState<ApiKey[]>([]);
  const [fresh, setFresh] = useState<NewKey | null>(null);
  const [problem, setProblem] = useState<string | null>(null);
  const attempt = async (work: () => Promise<NewKey | void>) => {
    setProblem(null);
    try {
      setFresh((await work()) ?? null);
      setKeys(await listKeys());
    } catch (error) {
      setProblem((error as Error).message);
    }
  };
  useEffect(() => void attempt(async () => undefined), [own.key.id]);
  return (
    <section aria-label="Keys">
      <h2>Keys made from it</h2>
      {problem && (
        <p class="trouble" role="alert">
          {problem}
        </p>
      )}
      {fresh && <Secret made={fresh} onDone={() => setFresh(null)} />}
      <Table
        keys={keys.filter((key) => key.id !== own.key.id)}
        onRotate={(key) => void attempt(() => rotateKey(key.id))}
        onRevoke={(key) => void attempt(() => revokeKey(key.id))}
      />
      <KeyForm scopes={own.scopes} onMake={(draft) => void attempt(() => makeKey(draft))} />
    </section>
  );
}

function Secret({ made, onDone }: { made: NewKey; onDone: () => void }) {
  return (
    <div class="secret" role="status">
      <p>
        The secret of <strong>{made.name}</strong>, shown this once:
      </p>
      <div class="row">
        <code class="mono">{made.value}</code>
        <CopyButton text={made.value} label="Copy secret" />
        <button type="button" class="small" onClick={onDone}>
          Done
        </button>
      </div>
    </div>
  );
}

interface TableProps {
  keys: ApiKey[];
  onRotate: (key: ApiKey) => void;
  onRevoke: (key: ApiKey) => void;
}

function Table({ keys, onRotate, onRevoke }: TableProps) {
  if (keys.length === 0) return <p class="faint">None yet.</p>;
  return (
    <div class="wide" role="region" aria-label="Keys below this one" tabIndex={0}>
      <table>
        <thead>
          <tr>
            {["Name", "Key", "Rights", "Spent", "Last used", "Ends", "State"].map((name) => (
              <th key={name} scope="col">
                {name}
              </th>
            ))}
            <th scope="col">
              <span class="hidden">Change</span>
            </th>
          </tr>
        </thead>
        <tbody>
          {keys.map((key) => (
            <tr key={key.id}>
              <td>{key.name}</td>
              <td class="mono">{key.redacted_value}</td>
              <td>{key.scopes.join(", ")}</td>
              <td>{key.budget === null ? credits(key.spent) : `${credits(key.spent)} of ${credits(key.budget)}`}</td>
              <td>{day(key.last_used_at)}</td>
              <td>{day(key.expires_at)}</td>
              <td>{key.status}</td>
              <td>{key.status === "active" && <Verbs {...{ of: key, onRotate, onRevoke }} />}</td>
            </tr>
          ))}
        </tbody>
      </table>
    </div>
  );
}

/** Revoking asks once more: it cannot be taken back. */
function Verbs({ of, onRotate, onRevoke }: { of: ApiKey } & Omit<TableProps, "keys">) {
  const [isAsked, setAsked] = useState(false);
  if (isAsked) {
    return (
      <>
        <button type="button" class="ghost danger" onClick={() => onRevoke(of)}>
          Really revoke {of.name}
        </button>
        <button type="button" class="ghost" onClick={() => setAsked(false)}>
          Keep
        </button>
      </>
    );
  }
  return (
    <>
      <button type="button" class="ghost" aria-label={`Rotate ${of.name}`} onClick={() => onRotate(of)}>
        Rotate
      </button>
      <button type="button" class="ghost" aria-label={`Revoke ${of.name}`} onClick={() => setAsked(true)}>
        Revoke
      </button>
    </>
  );
}
