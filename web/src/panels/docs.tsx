// Pages of the documentation, as the server has them. Links between pages stay in this panel.

import { useEffect, useState } from "preact/hooks";
import { LinkResolver, Markdown } from "../markdown/render";
import { useStore } from "../store/observable";
import { server } from "../store/server";
import { detail } from "../ui/route";
import { getText } from "../wire/client";

export function DocsPanel() {
  const info = useStore(server);
  const page = useStore(detail);
  const pages = info?.docs ?? [];
  return (
    <div class="panel docs">
      {page === "" ? <Contents pages={pages} /> : <Page page={page} />}
      {info && pages.length === 0 && <p class="lead">This server was installed without its documentation.</p>}
    </div>
  );
}

function Contents({ pages }: { pages: readonly string[] }) {
  return (
    <ul>
      {pages.map((page) => (
        <li key={page}>
          <a href={`#/docs/${page}`}>{page.replace(/\.md$/u, "")}</a>
        </li>
      ))}
    </ul>
  );
}

function Page({ page }: { page: string }) {
  const [text, setText] = useState<string | null>(null);
  const [problem, setProblem] = useState<string | null>(null);
  useEffect(() => {
    let isShown = true;
    setText(null);
    setProblem(null);
    getText(`/playground/docs/${page.split("/").map(encodeURIComponent).join("/")}`).then(
      (found) => isShown && setText(withoutImages(found)),
      (error: Error) => isShown && setProblem(error.message),
    );
    return () => void (isShown = false);
  }, [page]);
  return (
    <>
      <p>
        <a href="#/docs">All pages</a>
      </p>
      {problem && (
        <p class="trouble" role="alert">
          {problem}
        </p>
      )}
      <LinkResolver.Provider value={(href) => docsHref(page, href)}>
        {text !== null && <Markdown text={text} />}
      </LinkResolver.Provider>
    </>
  );
}

/** The address in this panel of a page that `page` links to; null for anything else. */
export function docsHref(page: string, href: string): string | null {
  const base = "http://docs.invalid/";
  if (!/^[\w./-]+\.md(#.*)?$/u.test(href)) return null;
  const { pathname } = new URL(href, base + page);
  return `#/docs${pathname}`;
}

/** Pictures are files of the documentation site and are not served here. */
function withoutImages(text: string): string {
  return text.replaceAll(/^!\[[^\]]*\]\([^)]*\)\n/gmu, "");
}
