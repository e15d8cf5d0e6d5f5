// The first thing a newcomer sees: what the cells mean, shown on a sentence that resolves, and questions to start with.

import { useEffect, useState } from "preact/hooks";
import { demonstration } from "../diffusion/demo";
import { Resolve } from "../diffusion/resolve";
import { play } from "../diffusion/scrubber";
import { useStore } from "../store/observable";
import { settings } from "../store/settings";
import { send } from "./session";

const OPENERS = [
  "Why is the sky blue?",
  "Write a Python function that returns the n-th Fibonacci number.",
  "Write a Python function that checks if a word is a palindrome.",
];
const SHOWN = demonstration();
const LAST = SHOWN.frames.length - 1;

export function Welcome() {
  const { model } = useStore(settings);
  return (
    <section class="welcome" aria-label="Start here">
      <h2>Watch an answer resolve</h2>
      <Demonstration />
      <ul class="key-list" aria-label="What the cells mean">
        <li>
          <span class="cell masked" data-glyph="░▒" aria-hidden="true" /> open
        </li>
        <li>
          <span class="cell draft shade-2">unsure</span> to <span class="cell draft shade-8">sure</span> drafts
        </li>
        <li>
          <span class="cell committed shade-9">committed</span> for good
        </li>
      </ul>
      <p>
        Every cell is a token, and every forward of the model settles as many as it can. Point at one to see when it was
        decided and what else might have stood there. Ask anything, or start with one of these:
      </p>
      {OPENERS.map((text) => (
        <button key={text} type="button" class="opener" disabled={model === ""} onClick={() => void send(text)}>
          {text}
        </button>
      ))}
    </section>
  );
}

/** Plays once; those who asked their system for less motion see the end of it. */
function Demonstration() {
  const [frame, setFrame] = useState(0);
  const [isPlaying, setPlaying] = useState(!matchMedia("(prefers-reduced-motion: reduce)").matches);
  useEffect(() => (isPlaying ? play(SHOWN, 0, 1, setFrame, setPlaying) : setFrame(LAST)), [isPlaying]);
  return (
    <div class="demo">
      <Resolve recording={SHOWN} frame={frame} canvasLen={0} label="A sentence resolving" />
      <button type="button" class="ghost" disabled={isPlaying} onClick={() => setPlaying(true)}>
        Again
      </button>
    </div>
  );
}
