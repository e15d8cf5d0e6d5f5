// The race: the same model and prompt, once token by token and once by diffusion, each with a clock and a count of
// forwards. The lanes run in turn, so that neither slows the other; the replay then shows both from the same gun.

import { useLayoutEffect, useState } from "preact/hooks";
import { readMeter } from "../chat/meter";
import { Run, startInTurn } from "../chat/run";
import { recordRun } from "../chat/session";
import { useStore } from "../store/observable";
import { chatFields, diffusionFields, settings, type Settings } from "../store/settings";
import type { ChatBody, DecoderName } from "../wire/types";
import { Lane } from "./lane";

const PROMPT = "Write a Python function that returns the n-th Fibonacci number.";

interface Race {
  ar: Run;
  diffusion: Run;
  /** In the order in which they start: each lane after its warm-up. */
  runs: Run[];
}

export function RacePanel() {
  const chosen = useStore(settings);
  const [prompt, setPrompt] = useState(PROMPT);
  const [race, setRace] = useState<Race | null>(null);
  const [isRunning, setRunning] = useState(false);
  const [replay, setReplay] = useState(0);
  const start = async () => {
    const [ar, diffusion] = [laneRun(chosen, prompt, "ar"), laneRun(chosen, prompt, rival(chosen))];
    const next = { ar, diffusion, runs: [warmUpOf(diffusion), diffusion, warmUpOf(ar), ar] };
    setRace(next);
    setReplay(0);
    setRunning(true);
    await startInTurn(next.runs, (run) => (run === ar || run === diffusion) && recordRun(run, "race"));
    setRunning(false);
    if (ar.state === "done" && diffusion.state === "done") setReplay(1);
  };
  return (
    <div class="panel">
      <p class="lead">
        The same weights answer the same prompt twice. What differs is how many tokens one pass of the model settles.
        Each is warmed up by one canvas and then has the machine to itself; afterwards both are shown from the same
        start. The last forward finds the end of the answer and adds no token, so one token at a time is a little less
        than one token per forward.
      </p>
      <label>
        Prompt
        <textarea rows={2} value={prompt} onInput={(event) => setPrompt(event.currentTarget.value)} />
      </label>
      <div class="row">
        <button type="button" class="primary" disabled={isRunning || chosen.model === ""} onClick={() => void start()}>
          Race
        </button>
        {isRunning && race && (
          <button type="button" aria-keyshortcuts="Escape" onClick={() => race.runs.forEach((run) => run.stop())}>
            Stop
          </button>
        )}
        {race && !isRunning && (
          <button type="button" onClick={() => setReplay((n) => n + 1)}>
            Replay side by side
          </button>
        )}
      </div>
      {race && !isRunning && <Verdict race={race} />}
      {race && <Track key={replay} race={race} isReplay={replay > 0} />}
    </div>
  );
}

/** Neither lane pays for reading the prompt or for the first forward of its kind. A failure shows in the race itself. */
function warmUpOf({ body }: Run): Run {
  return new Run({ ...body, max_tokens: body.decoder?.canvas_len ?? 1 });
}

function rival({ decoder }: Settings): DecoderName {
  return decoder === "ar" ? "verify" : decoder;
}

function laneRun(chosen: Settings, prompt: string, name: DecoderName): Run {
  const body: ChatBody = { ...chatFields(chosen), ...diffusionFields(), messages: [{ role: "user", content: prompt }] };
  const canvasLen = name === "ar" ? 1 : chosen.canvasLen;
  return new Run({ ...body, seed: Number(chosen.seed || 0), decoder: { name, canvas_len: canvasLen } });
}

/** The lanes as they run, or a replay from its start. A new one is drawn for every replay: it never shows the old end. */
function Track({ race, isReplay }: { race: Race; isReplay: boolean }) {
  const [clock, setClock] = useState<number | null>(isReplay ? 0 : null);
  useLayoutEffect(() => (isReplay ? runClock(race, setClock) : undefined), []);
  return (
    <div class="lanes">
      <Lane title="Diffusion" run={race.diffusion} clock={clock} />
      <Lane title="Autoregressive" run={race.ar} clock={clock} />
    </div>
  );
}

/** Tells the time since the gun until the slower lane has ended, then null; returns what stops it. */
function runClock(race: Race, tell: (ms: number | null) => void): () => void {
  const startedAt = performance.now();
  const end = Math.max(race.ar.elapsedMs, race.diffusion.elapsedMs);
  let request = requestAnimationFrame(tick);
  function tick() {
    const at = performance.now() - startedAt;
    tell(at < end ? at : null);
    if (at < end) request = requestAnimationFrame(tick);
  }
  return () => cancelAnimationFrame(request);
}

function Verdict({ race }: { race: Race }) {
  if (race.ar.state !== "done" || race.diffusion.state !== "done") return null;
  const ar = readMeter(race.ar);
  const other = readMeter(race.diffusion);
  const isSame = race.ar.content === race.diffusion.content;
  return (
    <p class="verdict" role="status">
      Diffusion took {other.seconds.toFixed(2)} s against {ar.seconds.toFixed(2)} s, {ratio(ar.seconds, other.seconds)}{" "}
      the speed, with {other.forwards} forwards against {ar.forwards}, {ratio(ar.forwards, other.forwards)} fewer. The
      texts are {isSame ? "identical" : "different"}.
    </p>
  );
}

function ratio(more: number, fewer: number): string {
  return fewer > 0 ? `${(more / fewer).toFixed(2)}×` : "not";
}
