// Tools: define functions, see the model call one, answer for it, and see what it makes of the answer.

import { useState } from "preact/hooks";
import { Meter, useRedraw } from "../chat/answering";
import { Run } from "../chat/run";
import { recordRun } from "../chat/session";
import { Markdown } from "../markdown/render";
import { useStore } from "../store/observable";
import { chatFields, settings } from "../store/settings";
import type { ToolCall, ToolSpec, WireMessage } from "../wire/types";
import { parse } from "./structured";

const TOOLS = `[
  {
    "name": "get_weather",
    "description": "Current weather in a city",
    "parameters": {
      "type": "object",
      "properties": { "city": { "type": "string" } },
      "required": ["city"]
    }
  }
]`;

export function ToolsPanel() {
  const [definitions, setDefinitions] = useState(TOOLS);
  const [prompt, setPrompt] = useState("What is the weather in Oslo?");
  const [turns, setTurns] = useState<WireMessage[]>([]);
  const { run, ask, problem } = useToolRun(definitions, setTurns);
  return (
    <div class="panel">
      <p class="lead">
        Define functions and ask for something they help with. The model calls, you answer for the function, and the
        model goes on from there.
      </p>
      <label>
        Functions
        <textarea
          class="mono"
          rows={12}
          spellcheck={false}
          value={definitions}
          onInput={(event) => setDefinitions(event.currentTarget.value)}
        />
      </label>
      <label>
        Prompt
        <textarea rows={2} value={prompt} onInput={(event) => setPrompt(event.currentTarget.value)} />
      </label>
      <div class="row">
        <button type="button" class="primary" onClick={() => void ask([{ role: "user", content: prompt }])}>
          Run
        </button>
      </div>
      {problem && (
        <p class="trouble" role="alert">
          {problem}
        </p>
      )}
      <ol class="turns" aria-label="Exchange">
        {turns.map((turn, i) => (
          <Turn key={i} turn={turn} />
        ))}
      </ol>
      {run && <InMaking run={run} />}
      {!run && <Answers turns={turns} onAnswer={(answers) => void ask([...turns, ...answers])} />}
    </div>
  );
}

function useToolRun(definitions: string, setTurns: (turns: WireMessage[]) => void) {
  const chosen = useStore(settings);
  const [run, setRun] = useState<Run | null>(null);
  const [problem, setProblem] = useState<string | null>(null);
  const ask = async (messages: WireMessage[]) => {
    const parsed = parse(definitions);
    setProblem(parsed.problem);
    if (parsed.problem || run) return;
    const next = new Run({ ...chatFields({ ...chosen, showsDiffusion: false }), messages, tools: specs(parsed.value) });
    setTurns(messages);
    setRun(next);
    await next.start();
    setRun(null);
    setProblem(next.error);
    if (!next.error) setTurns([...messages, answerOf(next)]);
    recordRun(next, "tools");
  };
  return { run, ask, problem };
}

function specs(value: unknown): ToolSpec[] {
  const functions = Array.isArray(value) ? value : [value];
  return functions.map((each) => ({ type: "function", function: each as ToolSpec["function"] }));
}

function answerOf(run: Run): WireMessage {
  const message: WireMessage = { role: "assistant", content: run.content };
  return run.calls.length ? { ...message, tool_calls: run.calls } : message;
}

function Turn({ turn }: { turn: WireMessage }) {
  return (
    <li class={`turn ${turn.role}`}>
      <span class="who">{turn.role}</span>
      {turn.content ? turn.role === "assistant" ? <Markdown text={turn.content} /> : <p>{turn.content}</p> : null}
      {turn.tool_calls?.map((call) => (
        <pre
          key={call.id}
          class="call"
          tabIndex={0}
          aria-label={`Call of ${call.function.name}`}
        >{`${call.function.name}(${call.function.arguments})`}</pre>
      ))}
    </li>
  );
}

function InMaking({ run }: { run: Run }) {
  useRedraw(run);
  return (
    <section aria-label="Answer in the making" aria-busy="true">
      {run.calls.map((call) => (
        <pre key={call.id} class="call">{`${call.function.name}(${call.function.arguments})`}</pre>
      ))}
      <p>{run.content}</p>
      <Meter run={run} />
      <button type="button" class="small" aria-keyshortcuts="Escape" onClick={() => run.stop()}>
        Stop
      </button>
    </section>
  );
}

/** A field for every call that waits for its result. */
function Answers({ turns, onAnswer }: { turns: WireMessage[]; onAnswer: (answers: WireMessage[]) => void }) {
  const calls = turns.at(-1)?.tool_calls ?? [];
  const [results, setResults] = useState<Record<string, string>>({});
  if (calls.length === 0) return null;
  const answers = calls.map((call): WireMessage => ({
    role: "tool",
    tool_call_id: call.id,
    content: results[call.id] ?? "",
  }));
  return (
    <form
      onSubmit={(event) => {
        event.preventDefault();
        onAnswer(answers);
      }}
    >
      {calls.map((call: ToolCall) => (
        <label key={call.id}>
          Result of {call.function.name}
          <textarea
            rows={2}
            class="mono"
            value={results[call.id] ?? ""}
            onInput={(event) => setResults({ ...results, [call.id]: event.currentTarget.value })}
          />
        </label>
      ))}
      <button type="submit" class="primary">
        Send result
      </button>
    </form>
  );
}
