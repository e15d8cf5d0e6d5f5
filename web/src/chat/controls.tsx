// The knobs of a request: model, effort, decoder, canvas, sampling, and the conversation's system prompt.

import { useState } from "preact/hooks";
import { useStore } from "../store/observable";
import { models, server, servedModels } from "../store/server";
import { change, settings, type Settings } from "../store/settings";
import type { DecoderName, Effort } from "../wire/types";
import { ModelCard } from "./model_card";
import { SystemPrompt } from "./system_prompt";

const EFFORTS: (Effort | "")[] = ["", "none", "instant", "low", "medium", "high"];
export const DECODERS: Record<DecoderName, string> = {
  verify: "verify: exact",
  confidence: "confidence: when sure",
  edit: "edit: may still change",
  ar: "ar: one by one",
};

export function Controls() {
  return (
    <details class="controls" open={window.innerWidth > 1000}>
      <summary>Settings</summary>
      <div class="fields">
        <ModelPicker />
        <ModelCard />
        <DecoderFields />
        <SamplingFields />
        <SystemPrompt />
        <label class="inline">
          <input
            type="checkbox"
            checked={useStore(settings).showsDiffusion}
            onChange={(event) => change({ showsDiffusion: event.currentTarget.checked })}
          />
          Show the diffusion
        </label>
      </div>
    </details>
  );
}

export function ModelPicker() {
  const { model } = useStore(settings);
  return (
    <label>
      Model
      <select value={model} onChange={(event) => change({ model: event.currentTarget.value })}>
        {servedModels(useStore(models)).map(({ id }) => (
          <option key={id} value={id}>
            {id}
          </option>
        ))}
      </select>
    </label>
  );
}

function DecoderFields() {
  const { effort, decoder, canvasLen } = useStore(settings);
  const info = useStore(server);
  const max = info?.max_canvas_len ?? 64;
  return (
    <>
      <label>
        Effort
        <select
          value={effort}
          onChange={(event) => change({ effort: event.currentTarget.value as Settings["effort"] })}
        >
          {EFFORTS.map((name) => (
            <option value={name}>{name || `server's default${info ? ` (${info.reasoning_effort})` : ""}`}</option>
          ))}
        </select>
      </label>
      <label>
        Decoder
        <select value={decoder} onChange={(event) => change({ decoder: event.currentTarget.value as DecoderName })}>
          {Object.entries(DECODERS).map(([name, meaning]) => (
            <option value={name}>{meaning}</option>
          ))}
        </select>
      </label>
      <NumberField
        label="Canvas length"
        value={canvasLen}
        min={1}
        max={max}
        step={1}
        onChange={(value) => change({ canvasLen: value })}
      />
    </>
  );
}

function SamplingFields() {
  const { temperature, maxTokens, seed } = useStore(settings);
  return (
    <>
      <NumberField
        label="Temperature"
        value={temperature}
        min={0}
        max={2}
        step={0.05}
        onChange={(value) => change({ temperature: value })}
      />
      <NumberField
        label="Max tokens"
        value={maxTokens}
        min={1}
        max={65536}
        step={1}
        onChange={(value) => change({ maxTokens: value })}
      />
      <label>
        Seed
        <input
          inputMode="numeric"
          pattern="-?[0-9]*"
          placeholder="random"
          value={seed}
          onInput={(event) => change({ seed: event.currentTarget.value.replace(/[^0-9-]/gu, "") })}
        />
      </label>
    </>
  );
}

interface NumberProps {
  label: string;
  value: number;
  min: number;
  max: number;
  step: number;
  onChange: (value: number) => void;
}

/** What is being typed stands until the field is left; a number in range counts at once. */
export function NumberField({ label, value, min, max, step, onChange }: NumberProps) {
  const [typed, setTyped] = useState<string | null>(null);
  const take = (text: string) => {
    setTyped(text);
    const number = Number(text);
    if (text !== "" && number >= min && number <= max) onChange(number);
  };
  return (
    <label>
      {label}
      <input
        type="number"
        value={typed ?? value}
        min={min}
        max={max}
        step={step}
        onInput={(event) => take(event.currentTarget.value)}
        onBlur={() => setTyped(null)}
      />
    </label>
  );
}
