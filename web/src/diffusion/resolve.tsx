// <Resolve>: the diffusion view of one recording, live or at a chosen frame, with the card that explains a cell.
// A keyboard reaches the cells too: focus the text, then walk it with Home, End and the arrow keys.

import { useLayoutEffect, useRef, useState } from "preact/hooks";
import { printable } from "../ui/format";
import { CanvasView, stateOf } from "./canvas_view";
import type { Cell, Recording } from "./recording";
import type { Alternative } from "../wire/types";

interface Props {
  recording: Recording;
  /** Index of the frame to show; -1 shows the newest and follows. */
  frame: number;
  canvasLen: number;
  /** Told of changes while the recording grows. */
  listen?: ((listener: () => void) => () => void) | undefined;
  label: string;
}

interface Card {
  title: string;
  lines: string[];
  others: Alternative[];
  left: number;
  top: number;
}

export function Resolve({ recording, frame, canvasLen, listen, label }: Props) {
  const host = useRef<HTMLDivElement>(null);
  const view = useRef<CanvasView | null>(null);
  const [card, setCard] = useState<Card | null>(null);
  const [cursor, setCursor] = useState(-1);

  useLayoutEffect(() => {
    if (host.current) view.current = new CanvasView(host.current, recording);
  }, [recording]);
  useLayoutEffect(() => {
    let isGone = false;
    const draw = () => {
      const index = frame < 0 ? recording.frames.length - 1 : frame;
      const isEnd = recording.isFinal && index >= recording.frames.length - 1;
      if (isGone || !view.current || !host.current) return;
      if (!view.current.show(index, isEnd ? 0 : canvasLen)) requestAnimationFrame(draw);
      else tellShown(host.current, index, isEnd && frame >= 0);
    };
    draw();
    const unlisten = listen?.(oncePerFrame(draw));
    return () => {
      isGone = true;
      unlisten?.();
    };
  }, [recording, frame, canvasLen, listen, recording.version]);

  const explain = (element: Element | null) => {
    if (view.current && element?.classList.contains("cell")) setCard(cardOf(view.current, element));
    else setCard(null);
  };
  const walk = (event: KeyboardEvent) => {
    const elements = view.current?.elements ?? [];
    const next = { ArrowRight: cursor + 1, ArrowLeft: cursor - 1, Home: 0, End: elements.length - 1 }[event.key];
    if (next === undefined) return;
    event.preventDefault();
    event.stopPropagation();
    const bounded = Math.max(0, Math.min(elements.length - 1, next));
    setCursor(bounded);
    explain(elements[bounded] ?? null);
  };
  return (
    <div class="resolve">
      <div
        ref={host}
        class="cells"
        role="group"
        tabIndex={0}
        aria-label={label}
        onPointerOver={(event) => explain(event.target as Element)}
        onPointerLeave={() => setCard(null)}
        onBlur={() => setCard(null)}
        onKeyDown={walk}
      />
      {card && <Explanation card={card} />}
    </div>
  );
}

/** Says which frame is shown. A finished answer keeps its height while earlier, shorter frames are. */
function tellShown(element: HTMLElement, index: number, isWhole: boolean): void {
  element.dataset["frame"] = String(index);
  if (isWhole && element.style.minHeight === "") element.style.minHeight = `${element.offsetHeight}px`;
}

/** Below its cell, and moved to the left where it would leave the text. */
function Explanation({ card }: { card: Card }) {
  const element = useRef<HTMLDivElement>(null);
  const [left, setLeft] = useState(0);
  useLayoutEffect(() => {
    const room = (element.current?.parentElement?.clientWidth ?? 0) - (element.current?.offsetWidth ?? 0);
    setLeft(Math.max(0, Math.min(card.left, room)));
  }, [card]);
  return (
    <div ref={element} class="card" role="status" style={{ left: `${left}px`, top: `${card.top}px` }}>
      <code>{card.title}</code>
      {card.lines.map((line) => (
        <div>{line}</div>
      ))}
      {card.others.length > 0 && (
        <ol class="others" aria-label="Might have stood here">
          {card.others.map(([text, probability]) => (
            <li>
              <meter value={probability} aria-hidden="true" />
              <span>{percent(probability)}</span> <code>{printable(text)}</code>
            </li>
          ))}
        </ol>
      )}
    </div>
  );
}

function cardOf(view: CanvasView, element: Element): Card {
  const box = element.getBoundingClientRect();
  const home = view.root.getBoundingClientRect();
  const place = { left: Math.max(0, box.left - home.left - 8), top: box.bottom - home.top + 4 };
  const { cell, token } = view.inspect(element);
  if (cell) return { title: printable(cell.text), lines: historyOf(cell), others: cell.top, ...place };
  if (!token || stateOf(token) === "masked")
    return { title: "mask", lines: ["nothing proposed yet"], others: [], ...place };
  const lines = [stateOf(token), confidenceLine(token[2])];
  return { title: printable(token[0]), lines, others: token[3] ?? [], ...place };
}

function historyOf({ step, committedAt, confidence, isForced }: Cell): string[] {
  if (isForced) return [`committed at forward ${committedAt}`, "forced: nothing else could stand here"];
  const decided = `decided at forward ${step}`;
  const settled = step === committedAt ? decided : `${decided}, committed at ${committedAt}`;
  return [settled, confidenceLine(confidence)];
}

function confidenceLine(confidence: number | null): string {
  return confidence === null ? "confidence not told" : `confidence ${percent(confidence)}`;
}

function percent(share: number): string {
  return `${(share * 100).toFixed(1)}%`;
}

/** Calls once per animation frame, however often it is asked. */
export function oncePerFrame(draw: () => void): () => void {
  let isAsked = false;
  return () => {
    if (isAsked) return;
    isAsked = true;
    requestAnimationFrame(() => {
      isAsked = false;
      draw();
    });
  };
}
