// API: exactly what the page just sent, as a command or a program that sends it again.

import { useState } from "preact/hooks";
import { useStore } from "../store/observable";
import { CodeBlock } from "../markdown/code";
import { lastSent } from "../wire/client";
import { LANGUAGES, snippet, type Language } from "./snippet";

export function ApiPanel() {
  const sent = useStore(lastSent);
  const [language, setLanguage] = useState<Language>("curl");
  if (!sent) return <p class="panel faint">Send something first; its request will stand here.</p>;
  return (
    <div class="panel">
      <p class="lead">
        <code>POST {sent.path}</code>, sent {new Date(sent.at).toLocaleTimeString()}. This server speaks OpenAI's and
        Mercury's dialects: any stock client works with this address as its base URL.
      </p>
      <fieldset class="choices">
        <legend class="hidden">Language</legend>
        {(Object.keys(LANGUAGES) as Language[]).map((name) => (
          <label key={name} class="inline">
            <input type="radio" name="language" checked={language === name} onChange={() => setLanguage(name)} />
            {LANGUAGES[name].title}
          </label>
        ))}
      </fieldset>
      <CodeBlock
        text={snippet(language, location.origin, sent)}
        language={LANGUAGES[language].highlight}
      />
    </div>
  );
}
