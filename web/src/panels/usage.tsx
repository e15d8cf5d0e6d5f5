// Usage: what this browser asked for, as sums and bars over time. Kept here; the server's own books are for operators.

import { useState } from "preact/hooks";
import { bucketed, entries, forgetEntries, type Bucket } from "../store/ledger";
import { useStore } from "../store/observable";
import { compact, money } from "../ui/format";

const HOUR_MS = 3_600_000;
const SPANS = { "24 hours": { spanMs: HOUR_MS, num: 24 }, "30 days": { spanMs: 24 * HOUR_MS, num: 30 } };
type Span = keyof typeof SPANS;

export function UsagePanel() {
  const known = useStore(entries);
  const [span, setSpan] = useState<Span>("24 hours");
  const buckets = bucketed(known, Date.now(), SPANS[span].spanMs, SPANS[span].num);
  const total = (pick: (bucket: Bucket) => number) => buckets.reduce((sum, bucket) => sum + pick(bucket), 0);
  return (
    <div class="panel">
      <div class="row">
        <label class="inline">
          Last
          <select value={span} onChange={(event) => setSpan(event.currentTarget.value as Span)}>
            {Object.keys(SPANS).map((name) => (
              <option>{name}</option>
            ))}
          </select>
        </label>
        <button type="button" onClick={() => void forgetEntries()}>
          Forget all
        </button>
      </div>
      <Chart title="Requests" sum={compact(total((b) => b.requests))} buckets={buckets} pick={(b) => b.requests} />
      <Chart title="Tokens" sum={compact(total((b) => b.tokens))} buckets={buckets} pick={(b) => b.tokens} />
      <Chart title="Cost" sum={money(total((b) => b.cost) || null)} buckets={buckets} pick={(b) => b.cost} />
      <Recent />
    </div>
  );
}

interface ChartProps {
  title: string;
  sum: string;
  buckets: Bucket[];
  pick: (bucket: Bucket) => number;
}

function Chart({ title, sum, buckets, pick }: ChartProps) {
  const peak = Math.max(1e-12, ...buckets.map(pick));
  return (
    <figure class="chart">
      <figcaption>
        {title} <strong>{sum}</strong>
      </figcaption>
      <svg
        viewBox={`0 0 ${buckets.length * 10} 60`}
        preserveAspectRatio="none"
        role="img"
        aria-label={`${title}: ${sum} in all`}
      >
        {buckets.map((bucket, i) => {
          const height = (pick(bucket) / peak) * 58;
          return (
            <rect key={bucket.label} x={i * 10 + 1} y={60 - height} width={8} height={height}>
              <title>{`${bucket.label}: ${pick(bucket)}`}</title>
            </rect>
          );
        })}
      </svg>
    </figure>
  );
}

function Recent() {
  const known = useStore(entries);
  if (known.length === 0) return <p class="faint">Nothing yet.</p>;
  return (
    <div class="wide" role="region" aria-label="Recent requests" tabIndex={0}>
      <table>
        <thead>
          <tr>
            {["When", "What", "Model", "In", "Out", "Forwards", "Seconds"].map((name) => (
              <th key={name} scope="col">
                {name}
              </th>
            ))}
          </tr>
        </thead>
        <tbody>
          {known
            .slice(-20)
            .reverse()
            .map((entry) => (
              <tr key={entry.at}>
                <td>{new Date(entry.at).toLocaleTimeString()}</td>
                <td>{entry.kind}</td>
                <td>{entry.model}</td>
                <td>{entry.promptTokens}</td>
                <td>{entry.completionTokens}</td>
                <td>{entry.forwards}</td>
                <td>{entry.seconds.toFixed(2)}</td>
              </tr>
            ))}
        </tbody>
      </table>
    </div>
  );
}
