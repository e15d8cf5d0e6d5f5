// Tasks of the page's main thread, from Chromium's own trace. Durations are processor time of that thread, so that a
// busy machine does not read as a slow page.

export async function traced(context, page, work) {
  const session = await context.newCDPSession(page);
  const events = [];
  session.on("Tracing.dataCollected", ({ value }) => events.push(...value));
  const complete = new Promise((resolve) => session.once("Tracing.tracingComplete", resolve));
  await session.send("Tracing.start", {
    transferMode: "ReportEvents",
    traceConfig: { includedCategories: ["toplevel", "blink.user_timing", "devtools.timeline", "__metadata"] },
  });
  await work();
  await session.send("Tracing.end");
  await complete;
  await session.detach();
  return events;
}

/** Milliseconds of processor time of every task on a renderer's main thread, longest first. */
export function mainThreadTasks(events) {
  const mains = events.filter((event) => event.name === "thread_name" && event.args.name === "CrRendererMain");
  const isMain = new Set(mains.map(({ pid, tid }) => `${pid}/${tid}`));
  const tasks = events.filter((event) => event.name.endsWith("RunTask") && isMain.has(`${event.pid}/${event.tid}`));
  return tasks.map((task) => (task.tdur ?? task.dur ?? 0) / 1000).sort((a, b) => b - a);
}
