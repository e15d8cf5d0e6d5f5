// Gives the browser a turn: what follows runs as a task of its own.

export function breathe(): Promise<void> {
  return new Promise((resolve) => setTimeout(resolve, 0));
}
