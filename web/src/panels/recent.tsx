// The newest requests of this browser, as a table.

import { entries } from "../store/ledger";
import { useStore } from "../store/observable";

const COLUMNS = ["When", "What", "Model", "In", "Out", "Forwards", "Tokens/forward", "Seconds"];
const NUM_SHOWN = 20;

export function Recent() {
  const known = useStore(entries);
  if (known.length === 0) return <p class="faint">Nothing yet.</p>;
  return (
    <div class="wide" role="region" aria-label="Recent requests" tabIndex={0}>
      <table>
        <thead>
          <tr>
            {COLUMNS.map((name) => (
              <th key={name} scope="col">
                {name}
              </th>
            ))}
          </tr>
        </thead>
        <tbody>
          {known
            .slice(-NUM_SHOWN)
            .reverse()
            .map((entry) => (
              <tr key={entry.at}>
                <td>{new Date(entry.at).toLocaleTimeString()}</td>
                <td>{entry.kind}</td>
                <td>{entry.model}</td>
                <td>{entry.promptTokens}</td>
                <td>{entry.completionTokens}</td>
                <td>{entry.forwards}</td>
                <td>{entry.forwards > 0 ? (entry.completionTokens / entry.forwards).toFixed(2) : "–"}</td>
                <td>{entry.seconds.toFixed(2)}</td>
              </tr>
            ))}
        </tbody>
      </table>
    </div>
  );
}
