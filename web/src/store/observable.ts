// A value with listeners that are called when it changes.

import { useLayoutEffect, useState } from "preact/hooks";

export class Store<T> {
  private readonly listeners = new Set<() => void>();

  constructor(private value: T) {}

  get(): T {
    return this.value;
  }

  set(value: T): void {
    if (Object.is(value, this.value)) return;
    this.value = value;
    for (const listener of [...this.listeners]) listener();
  }

  update(change: (value: T) => T): void {
    this.set(change(this.value));
  }

  subscribe(listener: () => void): () => void {
    this.listeners.add(listener);
    return () => this.listeners.delete(listener);
  }
}

/** The store's value; the component renders again when it changes. A change before it has subscribed counts too. */
export function useStore<T>(store: Store<T>): T {
  const [, bump] = useState(0);
  const value = store.get();
  useLayoutEffect(() => {
    if (!Object.is(store.get(), value)) bump((n) => n + 1);
    return store.subscribe(() => bump((n) => n + 1));
  }, [store]);
  return value;
}
