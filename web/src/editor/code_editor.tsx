// An editor as a component. The text is the editor's own: a new `text` or `file` makes a new editor.

import type { EditorView } from "@codemirror/view";
import type { Extension } from "@codemirror/state";
import { useEffect, useRef } from "preact/hooks";
import { useEditor, type EditorModule } from "./load";

export interface CodeEditorProps {
  label: string;
  text: string;
  file: string;
  cursor?: number;
  extensions?: (editor: EditorModule) => Extension;
  /** Called with every new editor, and with null when it is removed. */
  onView: (view: EditorView | null) => void;
}

export function CodeEditor({ label, text, file, cursor, extensions, onView }: CodeEditorProps) {
  const { editor, problem } = useEditor();
  const host = useRef<HTMLDivElement>(null);
  useEffect(() => {
    if (!editor || !host.current) return;
    const extra = extensions ? { extensions: extensions(editor) } : {};
    const view = editor.createEditor(host.current, { label, text, file, cursor: cursor ?? 0, ...extra });
    onView(view);
    return () => {
      onView(null);
      view.destroy();
    };
  }, [editor, text, file, cursor]);
  return <EditorBox host={host} isLoading={!editor} problem={problem} />;
}

interface DiffProps {
  before: string;
  after: string;
  file: string;
  label: string;
}

const NARROW_PX = 760;

/** Side by side where the window is wide enough. */
export function CodeDiff({ before, after, file, label }: DiffProps) {
  const { editor, problem } = useEditor();
  const host = useRef<HTMLDivElement>(null);
  useEffect(() => {
    if (!editor || !host.current) return;
    return editor.createDiff(host.current, before, after, file, window.innerWidth <= NARROW_PX);
  }, [editor, before, after, file]);
  return (
    <section aria-label={label}>
      <EditorBox host={host} isLoading={!editor} problem={problem} />
    </section>
  );
}

interface BoxProps {
  host: { current: HTMLDivElement | null };
  isLoading: boolean;
  problem: string | null;
}

function EditorBox({ host, isLoading, problem }: BoxProps) {
  return (
    <>
      {problem && (
        <p class="trouble" role="alert">
          {problem}
        </p>
      )}
      {isLoading && !problem && <p class="faint">Loading the editor…</p>}
      <div class="editor" ref={host} />
    </>
  );
}
