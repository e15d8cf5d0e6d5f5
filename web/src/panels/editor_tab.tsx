// The editor: completions as ghost text, next edits as a diff over the code. What the user decides about a suggestion is
// reported to the server. A new request of this editor cancels the one before it.

import { createTwoFilesPatch } from "diff";
import type { EditorView, ViewUpdate } from "@codemirror/view";
import { useEffect, useMemo, useRef, useState } from "preact/hooks";
import { CodeEditor } from "../editor/code_editor";
import { hunksOf } from "../editor/hunks";
import type { EditorModule } from "../editor/load";
import type { Suggestion } from "../editor/suggestion";
import { Picker } from "../ui/picker";
import { tell } from "../wire/client";
import type { ChatReply, TextReply } from "../wire/types";
import { editPrompt, regionAround, unfence } from "./edit_prompt";
import { cursorOf, SAMPLES } from "./samples";
import { useTask, type Task } from "./task";
import { TaskLine } from "./task_line";

const ASK_AFTER_MS = 350;
const COMPLETION_TOKENS = 128;
const WHILE_TYPING = { fim: "complete at the cursor", edit: "predict the next edit", none: "nothing" };
const TITLES = Object.fromEntries(Object.entries(SAMPLES).map(([id, { title }]) => [id, title]));
type Kind = "fim" | "edit";

export function EditorTab() {
  const [name, setName] = useState("logging");
  const [whileTyping, setWhileTyping] = useState<Kind | "none">("fim");
  const sample = SAMPLES[name] ?? (Object.values(SAMPLES)[0] as (typeof SAMPLES)[string]);
  const session = useSession(sample.file, sample.before);
  session.parts.whileTyping = whileTyping;
  return (
    <div>
      <div class="row">
        <Picker label="Sample" value={name} options={TITLES} onPick={setName} />
        <Picker
          label="While typing"
          value={whileTyping}
          options={WHILE_TYPING}
          onPick={(value) => setWhileTyping(value as Kind | "none")}
        />
      </div>
      <CodeEditor
        key={name}
        label={sample.file}
        text={sample.text}
        file={sample.file}
        cursor={cursorOf(sample)}
        extensions={session.extensions}
        onView={session.setView}
      />
      <div class="row">
        <button type="button" class="primary" aria-keyshortcuts="Control+Space" onClick={() => void session.parts.ask("fim")}>
          Complete
        </button>
        <button type="button" class="primary" aria-keyshortcuts="Control+Enter" onClick={() => void session.parts.ask("edit")}>
          Predict next edit
        </button>
        {session.shown && (
          <>
            <button type="button" aria-keyshortcuts="Tab" onClick={() => session.press("accept")}>
              Accept
            </button>
            <button type="button" aria-keyshortcuts="Escape" onClick={() => session.press("reject")}>
              Reject
            </button>
          </>
        )}
      </div>
      <TaskLine task={session.task}>{session.note}</TaskLine>
    </div>
  );
}

interface Parts {
  view: EditorView | null;
  editor: EditorModule | null;
  keys: ReturnType<EditorModule["suggestions"]> | null;
  whileTyping: Kind | "none";
  timer: number;
  ask: (kind: Kind) => Promise<void>;
  onUpdate: (update: ViewUpdate) => void;
}

const NO_PARTS: Parts = {
  view: null,
  editor: null,
  keys: null,
  whileTyping: "none",
  timer: 0,
  ask: async () => undefined,
  onUpdate: () => undefined,
};

/** The editor with its requests and suggestions. */
function useSession(file: string, before: string) {
  const task = useTask<TextReply | ChatReply>();
  const [shown, setShown] = useState<Suggestion | null>(null);
  const [note, setNote] = useState("");
  const parts = useRef<Parts>({ ...NO_PARTS }).current;
  useEffect(() => () => clearTimeout(parts.timer), []);
  parts.ask = async (kind) => {
    clearTimeout(parts.timer);
    if (!parts.view || !parts.editor) return;
    const { state } = parts.view;
    const focused = document.activeElement;
    const found = await (kind === "fim" ? askInfill(task, state) : askEdit(task, state, file, before));
    if (found === undefined || parts.view?.state.doc !== state.doc) return;
    setNote(found === null ? "Nothing to change." : kind === "edit" ? "Next edit found." : "Completion found.");
    parts.view.dispatch({ effects: parts.editor.suggest.of(found) });
    // A field that was entered while the request was under way keeps the focus.
    if (document.activeElement === focused) parts.view.focus();
  };
  parts.onUpdate = (update) => {
    setShown(shownIn(parts, update));
    if (update.docChanged) setNote("");
    if (isTyped(update)) askLater(parts, task, shownIn(parts, update) !== null);
  };
  const extensions = useMemo(() => (editor: EditorModule) => makeExtensions(parts, editor, task), []);
  const setView = (view: EditorView | null) => {
    task.cancel();
    clearTimeout(parts.timer);
    parts.view = view;
    setShown(null);
    setNote("");
  };
  const press = (key: "accept" | "reject") => {
    if (!parts.view) return;
    parts.keys?.[key](parts.view);
    parts.view.focus();
  };
  return { task, shown, note, parts, extensions, setView, press };
}

function shownIn({ editor }: Parts, update: ViewUpdate): Suggestion | null {
  return editor ? update.state.field(editor.suggestionField) : null;
}

function isTyped({ docChanged, transactions }: ViewUpdate): boolean {
  return docChanged && transactions.some((each) => each.isUserEvent("input.type") || each.isUserEvent("delete"));
}

/** After a pause. What is under way is for a text that no longer stands. */
function askLater(parts: Parts, task: Task<TextReply | ChatReply>, hasSuggestion: boolean): void {
  task.cancel();
  clearTimeout(parts.timer);
  const { whileTyping: kind } = parts;
  if (kind !== "none" && !hasSuggestion) parts.timer = window.setTimeout(() => void parts.ask(kind), ASK_AFTER_MS);
}

function makeExtensions(parts: Parts, editor: EditorModule, task: Task<TextReply | ChatReply>) {
  parts.editor = editor;
  parts.keys = editor.suggestions({
    onDecide: ({ id }, isAccepted) => void reportFeedback(id, isAccepted),
    onComplete: ({ kind }) => kind === "edit" && void parts.ask("edit"),
    onCancel: () => task.cancel(),
  });
  return [
    parts.keys.extension,
    editor.onUpdate((update) => parts.onUpdate(update)),
    editor.askKeys(
      () => void parts.ask("fim"),
      () => void parts.ask("edit"),
    ),
  ];
}

type State = EditorView["state"];

/** Undefined: the request failed or was cancelled. Null: there is nothing to suggest. */
async function askInfill(task: Task<TextReply | ChatReply>, state: State): Promise<Suggestion | null | undefined> {
  const at = state.selection.main.head;
  const body = {
    prompt: state.sliceDoc(0, at),
    suffix: state.sliceDoc(at),
    max_tokens: COMPLETION_TOKENS,
    realtime: true,
  };
  const reply = (await task.ask("/v1/fim/completions", body)) as TextReply | null;
  if (reply === null) return undefined;
  const text = reply.choices[0]?.text ?? "";
  return text === "" ? null : { kind: "ghost", id: reply.id, at, text };
}

async function askEdit(
  task: Task<TextReply | ChatReply>,
  state: State,
  file: string,
  before: string,
): Promise<Suggestion | null | undefined> {
  const code = state.doc.toString();
  const cursor = state.selection.main.head;
  const region = regionAround(code, cursor);
  const history = createTwoFilesPatch(`a/${file}`, `b/${file}`, before, code, "", "", { context: 2 });
  const content = editPrompt(file, code, cursor, region, history);
  const reply = (await task.ask("/v1/edit/completions", { messages: [{ role: "user", content }] })) as ChatReply | null;
  if (reply === null) return undefined;
  const answer = reply.choices[0]?.message.content ?? null;
  if (answer === null) return null;
  const hunks = hunksOf(code, code.slice(0, region.start) + unfence(answer) + code.slice(region.end));
  return hunks.length === 0 ? null : { kind: "edit", id: reply.id, hunks };
}

function reportFeedback(requestId: string, isAccepted: boolean): Promise<void> {
  const user_action = isAccepted ? "accept" : "reject";
  return tell("/feedback", { request_id: requestId, provider_name: "playground", user_action });
}
