// Recordings on disk: in the browser's database beside their messages, and as a file the user may keep.

import { get, put } from "../store/database";
import { Recording, type Cell, type Frame } from "./recording";

const FORMAT = "quicksilver-recording-2";

export interface Saved {
  format: string;
  text: string;
  frames: Frame[];
  cells: Cell[];
}

export function pack(recording: Recording): Saved {
  return { format: FORMAT, text: recording.content, frames: recording.frames, cells: recording.cells };
}

export function unpack(saved: Saved): Recording {
  const recording = new Recording();
  recording.frames.push(...saved.frames);
  recording.content = saved.text;
  recording.cells = saved.cells;
  recording.isFinal = true;
  return recording;
}

export async function save(id: string, recording: Recording): Promise<void> {
  await put("recordings", id, pack(recording));
}

/** Null where none was kept, or one that an older page wrote in its own way. */
export async function restore(id: string): Promise<Recording | null> {
  const saved = await get<Saved>("recordings", id);
  return saved?.format === FORMAT ? unpack(saved) : null;
}
