// Compare: one prompt, two models or two decoders, side by side. The two run in turn, so that neither slows the other.

import { useState } from "preact/hooks";
import { Run, startInTurn } from "../chat/run";
import { recordRun } from "../chat/session";
import { Lane } from "../diffusion/lane";
import { useStore } from "../store/observable";
import { models, servedModels } from "../store/server";
import { chatFields, diffusionFields, settings } from "../store/settings";
import { DECODERS } from "../chat/controls";
import { Picker } from "../ui/picker";
import type { DecoderName } from "../wire/types";

const PROMPT = "Write a Python function that checks if a word is a palindrome.";
const SIDES = ["Left", "Right"] as const;

interface Choice {
  /** Empty: the model of the settings. */
  model: string;
  decoder: DecoderName;
}

export function ComparePanel() {
  const chosen = useStore(settings);
  const names = servedModels(useStore(models)).map(({ id }) => id);
  const [prompt, setPrompt] = useState(PROMPT);
  const [choices, setChoices] = useState<[Choice, Choice]>([
    { model: "", decoder: "verify" },
    { model: "", decoder: "confidence" },
  ]);
  const [runs, setRuns] = useState<Run[]>([]);
  const [isRunning, setRunning] = useState(false);
  const start = async () => {
    const made = choices.map(({ model, decoder }) => {
      const fields = { ...chatFields({ ...chosen, model: model || chosen.model, decoder }), ...diffusionFields() };
      return new Run({ ...fields, messages: [{ role: "user", content: prompt }] });
    });
    setRuns(made);
    setRunning(true);
    await startInTurn(made, (run) => recordRun(run, "compare"));
    setRunning(false);
  };
  const choose = (side: number, part: Partial<Choice>) => {
    const [left, right] = choices;
    setChoices(side === 0 ? [{ ...left, ...part }, right] : [left, { ...right, ...part }]);
  };
  return (
    <div class="panel">
      <p class="lead">One prompt, answered with two models or two decoders, one after the other.</p>
      <label>
        Prompt
        <textarea rows={2} value={prompt} onInput={(event) => setPrompt(event.currentTarget.value)} />
      </label>
      <div class="sides">
        {choices.map((choice, side) => (
          <Side
            key={side}
            title={SIDES[side] ?? ""}
            choice={{ ...choice, model: choice.model || chosen.model }}
            names={names}
            onPick={(part) => choose(side, part)}
          />
        ))}
      </div>
      <div class="row">
        <button type="button" class="primary" disabled={isRunning || chosen.model === ""} onClick={() => void start()}>
          Compare
        </button>
        {isRunning && (
          <button type="button" aria-keyshortcuts="Escape" onClick={() => runs.forEach((run) => run.stop())}>
            Stop
          </button>
        )}
      </div>
      {runs.length > 0 && !isRunning && <Verdict runs={runs} />}
      <div class="lanes">
        {runs.map((run, side) => (
          <Lane key={side} title={titleOf(run, SIDES[side] ?? "")} run={run} clock={null} />
        ))}
      </div>
    </div>
  );
}

interface SideProps {
  title: string;
  choice: Choice;
  names: string[];
  onPick: (part: Partial<Choice>) => void;
}

function Side({ title, choice, names, onPick }: SideProps) {
  const options = Object.fromEntries(names.map((name) => [name, name]));
  return (
    <fieldset class="choices">
      <legend class="hidden">{title}</legend>
      <Picker label={`${title} model`} value={choice.model} options={options} onPick={(model) => onPick({ model })} />
      <Picker
        label={`${title} decoder`}
        value={choice.decoder}
        options={DECODERS}
        onPick={(decoder) => onPick({ decoder: decoder as DecoderName })}
      />
    </fieldset>
  );
}

function Verdict({ runs }: { runs: Run[] }) {
  const [left, right] = runs;
  if (left?.state !== "done" || right?.state !== "done") return null;
  return (
    <p class="verdict" role="status">
      The texts are {left.content === right.content ? "identical" : "different"}.
    </p>
  );
}

function titleOf({ body }: Run, side: string): string {
  return `${side}: ${body.model}, ${body.decoder?.name ?? ""}`;
}
