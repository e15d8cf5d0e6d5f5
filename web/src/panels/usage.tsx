// Usage over time: of the caller's project, out of the server's books, where accounts are on; and of this browser, out
// of its own record.

import { useEffect, useState } from "preact/hooks";
import { bucketed, entries, forgetEntries } from "../store/ledger";
import { useStore } from "../store/observable";
import { account, refreshAccount } from "../store/server";
import { Chart } from "../ui/chart";
import { compact, credits, money } from "../ui/format";
import { getUsage, sum, type Account, type UsageBucket, type Width } from "../wire/account";
import { Recent } from "./recent";

const HOUR_S = 3600;

interface Span {
  width: Width;
  spanS: number;
  num: number;
}

const SPANS: Record<string, Span> = {
  "24 hours": { width: "1h", spanS: HOUR_S, num: 24 },
  "7 days": { width: "1d", spanS: 24 * HOUR_S, num: 7 },
  "30 days": { width: "1d", spanS: 24 * HOUR_S, num: 30 },
};
const FIRST: Span = { width: "1h", spanS: HOUR_S, num: 24 };

export function UsagePanel() {
  const own = useStore(account);
  const mayRead = own?.scopes.includes("usage") ?? false;
  const [name, setName] = useState("24 hours");
  const [isLocal, setLocal] = useState(false);
  const span = SPANS[name] ?? FIRST;
  return (
    <div class="panel">
      <div class="row">
        <label class="inline">
          Last
          <select value={name} onChange={(event) => setName(event.currentTarget.value)}>
            {Object.keys(SPANS).map((each) => (
              <option key={each}>{each}</option>
            ))}
          </select>
        </label>
        {mayRead && (
          <label class="inline">
            Of
            <select
              aria-label="Whose usage"
              value={String(isLocal)} onChange={(event) => setLocal(event.currentTarget.value === "true")}>
              <option value="false">project {own?.project.name}</option>
              <option value="true">this browser</option>
            </select>
          </label>
        )}
      </div>
      {own && mayRead && !isLocal ? <ServerUsage own={own} span={span} /> : <LocalUsage span={span} />}
    </div>
  );
}

function ServerUsage({ own, span }: { own: Account; span: Span }) {
  const [buckets, setBuckets] = useState<UsageBucket[] | null>(null);
  const [problem, setProblem] = useState<string | null>(null);
  useEffect(() => {
    const start = (Math.floor(Date.now() / 1000 / span.spanS) - span.num + 1) * span.spanS;
    let isStale = false;
    setProblem(null);
    // The balance and the charts are of the same moment.
    Promise.all([getUsage(start, span.width, span.num), refreshAccount()]).then(
      ([found]) => isStale || setBuckets(found),
      (error: Error) => isStale || setProblem(error.message),
    );
    return () => {
      isStale = true;
    };
  }, [own.key.id, span.width, span.num]);
  return (
    <>
      <p class="lead">
        Out of the server's books, for every key of project <strong>{own.project.name}</strong>
        {own.balance !== null && `; ${credits(own.balance)} credits are left to this key`}.
      </p>
      {problem && (
        <p class="trouble" role="alert">
          {problem}
        </p>
      )}
      {buckets && <Charts buckets={buckets} span={span} cost={(value) => `${credits(String(value))} credits`} />}
    </>
  );
}

function LocalUsage({ span }: { span: Span }) {
  const known = useStore(entries);
  const buckets = bucketed(known, Date.now(), span.spanS * 1000, span.num);
  return (
    <>
      <p class="lead">What this browser asked for, kept in it and nowhere else.</p>
      <Charts buckets={buckets} span={span} cost={(value) => money(value || null)} />
      <Recent />
      {known.length > 0 && (
        <button type="button" onClick={() => void forgetEntries()}>
          Forget all
        </button>
      )}
    </>
  );
}

interface ChartsProps {
  buckets: UsageBucket[];
  span: Span;
  cost: (value: number) => string;
}

function Charts({ buckets, span, cost }: ChartsProps) {
  const labels = buckets.map(({ start }) => labelOf(start, span.width));
  const pick = (name: keyof UsageBucket) => buckets.map((bucket) => bucket[name]);
  const total = (name: keyof UsageBucket) => sum(buckets, (bucket) => bucket[name]);
  const tokens = [
    { name: "in", values: pick("tokensIn") },
    { name: "out", values: pick("tokensOut") },
  ];
  return (
    <div class="charts">
      <Chart
        title="Requests"
        total={compact(total("requests"))}
        labels={labels}
        series={[{ name: "requests", values: pick("requests") }]}
        format={compact}
      />
      <Chart
        title="Tokens"
        total={compact(total("tokensIn") + total("tokensOut"))}
        labels={labels}
        series={tokens}
        format={compact}
      />
      <Chart
        title="Cost"
        total={cost(total("cost"))}
        labels={labels}
        series={[{ name: "cost", values: pick("cost") }]}
        format={cost}
      />
    </div>
  );
}

function labelOf(start: number, width: Width): string {
  const date = new Date(start * 1000);
  if (width === "1h") return `${String(date.getHours()).padStart(2, "0")}:00`;
  return date.toLocaleDateString("en", { month: "short", day: "numeric", timeZone: "UTC" });
}
