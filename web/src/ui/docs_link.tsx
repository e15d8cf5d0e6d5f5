// A link to a page of the documentation, shown where the server has that page.

import type { ComponentChildren } from "preact";
import { useStore } from "../store/observable";
import { server } from "../store/server";

export function DocsLink({ page, children }: { page: string; children: ComponentChildren }) {
  const info = useStore(server);
  return info?.docs.includes(page) ? <a href={`#/docs/${page}`}>{children}</a> : null;
}
