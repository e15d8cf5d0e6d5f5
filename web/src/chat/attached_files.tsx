// The files of the next message in the composer: a button that chooses them, the drop of files anywhere on the page, and
// the list of those that are attached.

import { useLayoutEffect, useRef, useState } from "preact/hooks";
import { useStore } from "../store/observable";
import { bytes } from "../ui/format";
import { attach, attached, detach, refusal } from "./attachments";

export function AttachButton() {
  const input = useRef<HTMLInputElement>(null);
  return (
    <>
      <button type="button" class="ghost" onClick={() => input.current?.click()}>
        Attach files
      </button>
      <input
        ref={input}
        type="file"
        multiple
        hidden
        aria-label="Files to attach"
        onChange={(event) => {
          void attach([...(event.currentTarget.files ?? [])]);
          event.currentTarget.value = "";
        }}
      />
    </>
  );
}

/** `onDetached` moves the focus on from the button that is gone. */
export function AttachedFiles({ onDetached }: { onDetached: () => void }) {
  const files = useStore(attached);
  const reason = useStore(refusal);
  return (
    <>
      {files.length > 0 && (
        <ul class="files" aria-label="Attached files">
          {files.map((file) => (
            <li>
              <span class="name">{file.name}</span> <span class="faint">{bytes(file.size)}</span>
              <button
                type="button"
                class="ghost"
                aria-label={`Remove ${file.name}`}
                onClick={() => {
                  detach(file);
                  onDetached();
                }}
              >
                ×
              </button>
            </li>
          ))}
        </ul>
      )}
      <p class="hidden" role="status">
        {files.length > 0 && `${files.length} attached`}
      </p>
      {reason !== null && (
        <p class="trouble" role="alert">
          {reason}
        </p>
      )}
    </>
  );
}

/** Attaches files that are dropped on the page, which would replace the page otherwise. Returns whether some are held over it. */
export function useFileDrop(): boolean {
  const [isOver, setOver] = useState(false);
  useLayoutEffect(() => {
    const listeners = {
      dragover: (event: DragEvent) => {
        if (!hasFiles(event)) return;
        event.preventDefault();
        setOver(true);
      },
      dragleave: (event: DragEvent) => event.relatedTarget === null && setOver(false),
      drop: (event: DragEvent) => {
        setOver(false);
        if (!hasFiles(event)) return;
        event.preventDefault();
        void attach([...(event.dataTransfer?.files ?? [])]);
      },
    };
    const all = Object.entries(listeners) as [string, EventListener][];
    for (const [name, listener] of all) document.addEventListener(name, listener);
    return () => {
      for (const [name, listener] of all) document.removeEventListener(name, listener);
    };
  }, []);
  return isOver;
}

function hasFiles(event: DragEvent): boolean {
  return event.dataTransfer?.types.includes("Files") ?? false;
}
