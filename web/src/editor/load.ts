// Loads the editor when it is first needed; the promise is kept, so that later editors appear at once.

import { useEffect, useState } from "preact/hooks";

export type EditorModule = typeof import("./create");

let loading: Promise<EditorModule> | null = null;

export function loadEditor(): Promise<EditorModule> {
  loading ??= import("./create").catch((error: unknown) => {
    loading = null;
    throw error;
  });
  return loading;
}

export interface Loaded {
  editor: EditorModule | null;
  problem: string | null;
}

export function useEditor(): Loaded {
  const [state, setState] = useState<Loaded>({ editor: null, problem: null });
  useEffect(() => {
    loadEditor().then(
      (editor) => setState({ editor, problem: null }),
      (error: unknown) => setState({ editor: null, problem: `The editor was not loaded: ${(error as Error).message}` }),
    );
  }, []);
  return state;
}
