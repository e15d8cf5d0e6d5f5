// Fine-tuning: a form that uploads rows and creates a job, the jobs of the project, and the loss curve of one of them.

import { useEffect, useState } from "preact/hooks";
import { useStore } from "../store/observable";
import { meetServer, models, servedModels } from "../store/server";
import { change } from "../store/settings";
import { compact } from "../ui/format";
import { LineChart } from "../ui/line_chart";
import { go } from "../ui/route";
import {
  changeJob, createJob, isOpen, listEvents, listJobs, lossesOf, uploadRows, type Job, type JobEvent,
} from "../wire/tuning";

const POLL_MS = 2000;
const NUM_MESSAGES = 6;

export function TunePanel() {
  const [jobs, setJobs] = useState<Job[] | null>(null);
  const [problem, setProblem] = useState<string | null>(null);
  const [chosen, setChosen] = useState<string | null>(null);
  const refresh = () => listJobs().then(setJobs, (error: Error) => setProblem(error.message));
  const hasOpen = jobs?.some(isOpen) ?? true;
  useEffect(() => void refresh(), []);
  usePolling(refresh, hasOpen);
  const shown = jobs?.find(({ id }) => id === chosen) ?? jobs?.[0];
  return (
    <div class="panel">
      <p class="lead">
        Trains a small adapter on your rows while the server keeps answering. The result is a model of this project.
      </p>
      <NewJob
        onCreated={(job) => {
          setChosen(job.id);
          void refresh();
        }}
      />
      {problem && (
        <p class="trouble" role="alert">
          {problem}
        </p>
      )}
      {jobs !== null && jobs.length > 0 && <JobTable jobs={jobs} shown={shown?.id} onChoose={setChosen} />}
      {shown && <JobDetails key={shown.id} job={shown} onChanged={refresh} />}
    </div>
  );
}

function NewJob({ onCreated }: { onCreated: (job: Job) => void }) {
  const known = servedModels(useStore(models)).filter(({ id }) => !id.startsWith("ft:"));
  const [model, setModel] = useState("");
  const [suffix, setSuffix] = useState("");
  const [epochs, setEpochs] = useState(3);
  const [file, setFile] = useState<File | null>(null);
  const [isBusy, setBusy] = useState(false);
  const [problem, setProblem] = useState<string | null>(null);
  const create = async () => {
    if (file === null) return;
    setBusy(true);
    setProblem(null);
    try {
      const draft = { model: model || (known[0]?.id ?? ""), training_file: await uploadRows(file) };
      const job = await createJob({
        ...draft, ...(suffix.trim() && { suffix: suffix.trim() }), hyperparameters: { n_epochs: epochs },
      });
      onCreated(job);
    } catch (error) {
      setProblem((error as Error).message);
    }
    setBusy(false);
  };
  return (
    <form
      class="tune-form"
      onSubmit={(event) => {
        event.preventDefault();
        void create();
      }}
    >
      <div class="row">
        <label class="grow">
          Rows (JSON Lines)
          <input
            type="file"
            accept=".jsonl,.json,application/jsonl"
            onChange={(event) => setFile(event.currentTarget.files?.[0] ?? null)}
          />
        </label>
        <label>
          Model
          <select value={model} onChange={(event) => setModel(event.currentTarget.value)}>
            {known.map(({ id }) => (
              <option key={id}>{id}</option>
            ))}
          </select>
        </label>
      </div>
      <div class="row">
        <label class="grow">
          Name
          <input
            value={suffix}
            maxLength={64}
            placeholder="optional, becomes part of the model's name"
            onInput={(event) => setSuffix(event.currentTarget.value)}
          />
        </label>
        <label>
          Epochs
          <input
            type="number"
            min={1}
            max={50}
            value={epochs}
            onInput={(event) => setEpochs(Math.max(1, Number(event.currentTarget.value) || 1))}
          />
        </label>
        <button type="submit" class="primary" disabled={file === null || isBusy}>
          {isBusy ? "Uploading…" : "Start"}
        </button>
      </div>
      <p class="faint">
        One row per line, for example <code>{'{"messages": [{"role": "user", …}, {"role": "assistant", …}]}'}</code>.
      </p>
      {problem && (
        <p class="trouble" role="alert">
          {problem}
        </p>
      )}
    </form>
  );
}

interface JobTableProps {
  jobs: Job[];
  shown: string | undefined;
  onChoose: (id: string) => void;
}

function JobTable({ jobs, shown, onChoose }: JobTableProps) {
  return (
    <table>
      <thead>
        <tr>
          <th>Job</th>
          <th>Model</th>
          <th>Status</th>
          <th>Tokens</th>
        </tr>
      </thead>
      <tbody>
        {jobs.map((job) => (
          <tr key={job.id} aria-current={job.id === shown ? "true" : undefined}>
            <td>
              <button type="button" class="ghost mono" onClick={() => onChoose(job.id)}>
                {job.id.slice(0, 16)}
              </button>
            </td>
            <td>{job.fine_tuned_model ?? job.model}</td>
            <td>{job.status}</td>
            <td>{job.trained_tokens === null ? "" : compact(job.trained_tokens)}</td>
          </tr>
        ))}
      </tbody>
    </table>
  );
}

function JobDetails({ job, onChanged }: { job: Job; onChanged: () => void }) {
  const [events, setEvents] = useState<JobEvent[]>([]);
  const [problem, setProblem] = useState<string | null>(null);
  const refresh = () => listEvents(job.id).then(setEvents, (error: Error) => setProblem(error.message));
  useEffect(() => void refresh(), [job.status]);
  usePolling(refresh, isOpen(job));
  const act = (action: "cancel" | "pause" | "resume") =>
    changeJob(job.id, action).then(onChanged, (error: Error) => setProblem(error.message));
  const points = lossesOf(events).map(({ step, loss }) => ({ x: step, y: loss }));
  const messages = events.filter(({ type }) => type === "message").slice(0, NUM_MESSAGES);
  return (
    <section aria-label={`Job ${job.id}`}>
      <h2>{job.fine_tuned_model ?? job.id}</h2>
      <div class="row">
        {job.status === "running" && <Action name="Pause" onClick={() => act("pause")} />}
        {job.status === "paused" && <Action name="Resume" onClick={() => act("resume")} />}
        {isOpen(job) && <Action name="Cancel" onClick={() => act("cancel")} />}
        {job.fine_tuned_model !== null && <Action name="Chat with it" onClick={() => chatWith(job.fine_tuned_model ?? "")} />}
      </div>
      {(problem ?? job.error?.message) && (
        <p class="trouble" role="alert">
          {problem ?? job.error?.message}
        </p>
      )}
      <LineChart title="Training loss" points={points} format={(value) => value.toFixed(3)} />
      <ul class="events">
        {messages.map(({ id, message, created_at }) => (
          <li key={id}>
            <time class="mono faint">{new Date(created_at * 1000).toLocaleTimeString("en", { hour12: false })}</time> {message}
          </li>
        ))}
      </ul>
    </section>
  );
}

function Action({ name, onClick }: { name: string; onClick: () => void }) {
  return (
    <button type="button" onClick={onClick}>
      {name}
    </button>
  );
}

/** The list of models has the new one only after it is asked for again. */
async function chatWith(model: string): Promise<void> {
  await meetServer();
  change({ model });
  go("chat");
}

function usePolling(call: () => unknown, isOn: boolean): void {
  useEffect(() => {
    if (!isOn) return;
    const timer = setInterval(() => void call(), POLL_MS);
    return () => clearInterval(timer);
  }, [isOn]);
}
