// What is known of the chosen model: context, price, abilities, the other names it answers to, and where to read more.

import { useStore } from "../store/observable";
import { aliasesOf, models, server, servedModels } from "../store/server";
import { settings } from "../store/settings";
import { DocsLink } from "../ui/docs_link";
import { compact } from "../ui/format";
import type { ModelEntry } from "../wire/types";

const PER_MILLION = 1_000_000;

export function ModelCard() {
  const { model } = useStore(settings);
  const known = useStore(models);
  const info = useStore(server);
  const entry = servedModels(known).find(({ id }) => id === model);
  if (!entry) return null;
  const page = `reference/models/${entry.id}.md`;
  const aliases = aliasesOf(known, entry.id);
  const facts: [string, string][] = [
    ["Context", entry.context_length === undefined ? "known once loaded" : `${compact(entry.context_length)} tokens`],
    ["Answer", entry.max_output_length === undefined ? "known once loaded" : `${compact(entry.max_output_length)} tokens at most`],
    ["Price", price(entry)],
    ["Abilities", entry.supported_features.join(", ").replaceAll("_", " ") || "chat"],
    ["State", `${entry.quicksilver.state}${info ? ` on ${info.device}` : ""}`],
  ];
  return (
    <details class="model-card">
      <summary>About {entry.name}</summary>
      {entry.description && <p>{entry.description}</p>}
      <dl class="facts">
        {facts.map(([name, value]) => (
          <div key={name}>
            <dt>{name}</dt>
            <dd>{value}</dd>
          </div>
        ))}
      </dl>
      {aliases.length > 0 && (
        <details>
          <summary>Also answers to {aliases.length} other names</summary>
          <p class="mono">{aliases.join(", ")}</p>
        </details>
      )}
      <p class="links">
        <DocsLink page={page}>Model page</DocsLink>
        <DocsLink page="concepts/decoding.md">Decoders</DocsLink>
        <DocsLink page="guides/chat.md">Chat guide</DocsLink>
        <DocsLink page="reference/http-api.md">HTTP reference</DocsLink>
      </p>
    </details>
  );
}

function price({ pricing }: ModelEntry): string {
  const [input, output] = [Number(pricing.prompt), Number(pricing.completion)].map((each) => each * PER_MILLION);
  return input || output ? `$${input} in, $${output} out, per million tokens` : "free";
}
