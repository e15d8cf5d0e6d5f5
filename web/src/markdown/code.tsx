// A code block: highlighted from a syntax tree into spans of text, with a copy button.
// The highlighter is fetched when the first block needs it; until then, and for unknown languages, code is plain text.

import { Fragment, type ComponentChildren } from "preact";
import { useEffect, useState } from "preact/hooks";
import { CopyButton } from "../ui/copy_button";
import type { Highlight, Node } from "./highlight";

const MAX_HIGHLIGHTED_CHARS = 20_000;

export function CodeBlock({ text, language }: { text: string; language: string }) {
  const name = language.trim().split(/\s/u)[0] ?? "";
  const nodes = useHighlight(text, name);
  return (
    <figure class="code">
      <figcaption>
        <span>{name || "text"}</span>
        <CopyButton text={text} label="Copy code" />
      </figcaption>
      <pre tabIndex={0} aria-label={`Code${name ? ` in ${name}` : ""}`}>
        <code>{nodes ? nodes.map(element) : text}</code>
      </pre>
    </figure>
  );
}

function useHighlight(text: string, language: string): readonly Node[] | null {
  const [highlight, setHighlight] = useState<Highlight | null>(null);
  useEffect(() => {
    let isGone = false;
    void import("./highlight").then((module) => {
      if (!isGone) setHighlight(() => module.highlight);
    });
    return () => {
      isGone = true;
    };
  }, []);
  return highlight && text.length <= MAX_HIGHLIGHTED_CHARS ? highlight(text, language) : null;
}

function element(node: Node, i: number): ComponentChildren {
  if (node.type === "text") return <Fragment key={i}>{node.value}</Fragment>;
  return (
    <span key={i} class={node.classes.join(" ")}>
      {node.children.map(element)}
    </span>
  );
}
