// Structured output: build or paste a JSON Schema, and see which tokens it forced and which the model chose.

import { useMemo, useRef, useState } from "preact/hooks";
import { Meter, useRedraw } from "../chat/answering";
import { formatReading, readMeter } from "../chat/meter";
import { Run } from "../chat/run";
import { recordRun } from "../chat/session";
import { Resolve } from "../diffusion/resolve";
import { useStore } from "../store/observable";
import { chatFields, diffusionFields, settings } from "../store/settings";
import { SchemaBuilder } from "./schema_builder";

const SCHEMA = `{
  "type": "object",
  "properties": {
    "name": { "type": "string" },
    "age": { "type": "integer" },
    "city": { "enum": ["Paris", "Oslo", "Lima"] }
  },
  "required": ["name", "age", "city"],
  "additionalProperties": false
}`;

export function StructuredPanel() {
  const chosen = useStore(settings);
  const [schema, setSchema] = useState(SCHEMA);
  const [prompt, setPrompt] = useState("Ada is 36 and lives in Oslo. Describe her as JSON.");
  const [run, setRun] = useState<Run | null>(null);
  const field = useRef<HTMLTextAreaElement>(null);
  const parsed = useMemo(() => parseSchema(schema), [schema]);
  const start = async () => {
    if (parsed.problem !== null) {
      field.current?.focus();
      return;
    }
    const format = { type: "json_schema", json_schema: { name: "answer", schema: parsed.value, strict: true } };
    const messages = [{ role: "user" as const, content: prompt }];
    const next = new Run({ ...chatFields(chosen), ...diffusionFields(), messages, response_format: format });
    setRun(next);
    await next.start();
    recordRun(next, "structured");
  };
  return (
    <div class="panel">
      <p class="lead">
        The answer is held to the schema while it is made. What the schema leaves no choice for is written without
        asking the model.
      </p>
      <div class="sides">
        <SchemaBuilder text={schema} schema={parsed.problem === null ? parsed.value : undefined} onChange={setSchema} />
        <div>
          <label>
            JSON Schema
            <textarea
              ref={field}
              class="mono"
              rows={12}
              spellcheck={false}
              value={schema}
              aria-invalid={parsed.problem !== null}
              aria-describedby="schema-problem"
              onInput={(event) => setSchema(event.currentTarget.value)}
            />
          </label>
          <div id="schema-problem" role="alert">
            {parsed.problem !== null && <p class="trouble">{parsed.problem}</p>}
          </div>
        </div>
      </div>
      <label>
        Prompt
        <textarea rows={2} value={prompt} onInput={(event) => setPrompt(event.currentTarget.value)} />
      </label>
      <div class="row">
        <button type="button" class="primary" disabled={chosen.model === ""} onClick={() => void start()}>
          Run
        </button>
      </div>
      {run && <Result run={run} />}
    </div>
  );
}

function Result({ run }: { run: Run }) {
  useRedraw(run);
  const listen = useMemo(() => (listener: () => void) => run.listen(listener), [run]);
  const numForced = run.recording.cells.filter((cell) => cell.isForced).length;
  return (
    <section class="result" aria-label="Result">
      <Resolve
        recording={run.recording}
        frame={-1}
        canvasLen={run.body.decoder?.canvas_len ?? 0}
        listen={listen}
        label="Structured answer"
      />
      {run.isOver ? <p class="meter mono">{formatReading(readMeter(run))}</p> : <Meter run={run} />}
      {!run.isOver && (
        <button type="button" class="small" aria-keyshortcuts="Escape" onClick={() => run.stop()}>
          Stop
        </button>
      )}
      {run.error && (
        <p class="trouble" role="alert">
          {run.error}
        </p>
      )}
      {run.state === "done" && (
        <p role="status">
          {parse(run.content).problem ? "Not valid JSON." : "Valid JSON."} <span class="key forced">forced</span>{" "}
          {numForced} tokens the schema left no choice for, <span class="key free">free</span>{" "}
          {run.recording.cells.length - numForced} the model chose.
        </p>
      )}
    </section>
  );
}

function parseSchema(text: string): ReturnType<typeof parse> {
  const parsed = parse(text);
  const isObject = typeof parsed.value === "object" && parsed.value !== null && !Array.isArray(parsed.value);
  if (parsed.problem !== null || isObject) return parsed;
  return { value: null, problem: 'A schema is a JSON object, for example {"type": "object"}.' };
}

export function parse(text: string): { value: unknown; problem: string | null } {
  try {
    return { value: JSON.parse(text) as unknown, problem: null };
  } catch (error) {
    return { value: null, problem: (error as Error).message };
  }
}
