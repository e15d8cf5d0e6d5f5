// IndexedDB: conversations, the recordings of their answers, settings, and a record of requests for the Usage panel.
// All of it stays in this browser. No key is ever stored.

const NAME = "quicksilver";
const VERSION = 1;

export type Shelf = "conversations" | "recordings" | "settings" | "requests";
const SHELVES: Shelf[] = ["conversations", "recordings", "settings", "requests"];

let opening: Promise<IDBDatabase> | null = null;

export async function get<T>(shelf: Shelf, key: string): Promise<T | undefined> {
  return done((await open()).transaction(shelf).objectStore(shelf).get(key) as IDBRequest<T | undefined>);
}

export async function all<T>(shelf: Shelf): Promise<T[]> {
  return done((await open()).transaction(shelf).objectStore(shelf).getAll() as IDBRequest<T[]>);
}

export async function put(shelf: Shelf, key: string, value: unknown): Promise<void> {
  await done((await open()).transaction(shelf, "readwrite").objectStore(shelf).put(value, key));
}

export async function remove(shelf: Shelf, key: string): Promise<void> {
  await done((await open()).transaction(shelf, "readwrite").objectStore(shelf).delete(key));
}

export async function clear(shelf: Shelf): Promise<void> {
  await done((await open()).transaction(shelf, "readwrite").objectStore(shelf).clear());
}

function open(): Promise<IDBDatabase> {
  if (opening) return opening;
  const request = indexedDB.open(NAME, VERSION);
  request.onupgradeneeded = () => {
    for (const shelf of SHELVES) request.result.createObjectStore(shelf);
  };
  opening = done(request);
  return opening;
}

function done<T>(request: IDBRequest<T>): Promise<T> {
  return new Promise((resolve, reject) => {
    request.onsuccess = () => resolve(request.result);
    request.onerror = () => reject(request.error);
  });
}
