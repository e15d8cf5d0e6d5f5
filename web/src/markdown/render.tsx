// Markdown to elements, by allow-list. marked only parses; every element is made here and every character of the
// answer ends as a text node, so HTML in an answer is shown as the text it is. Links open nothing by themselves:
// http, https and mailto only, no referrer, and images become links.

import { marked, type Token, type Tokens } from "marked";
import { createContext, Fragment, type ComponentChildren, type VNode } from "preact";
import { useContext } from "preact/hooks";
import { memo } from "./memo";
import { CodeBlock } from "./code";

const SAFE_URL = /^(https?:\/\/|mailto:)/iu;

/** Turns a relative link into an address of this page, or null. Answers have none: their relative links stay text. */
export const LinkResolver = createContext<(href: string) => string | null>(() => null);

export function Markdown({ text }: { text: string }) {
  return (
    <div class="markdown">
      {marked.lexer(text, { gfm: true }).map((token, i) => (
        <Block key={i} raw={token.raw} token={token} />
      ))}
    </div>
  );
}

/** A block whose source is unchanged is not rendered again: while an answer grows only its last block does. */
const Block = memo(
  ({ token }: { raw: string; token: Token }) => block(token),
  (before, now) => before.raw === now.raw,
);

function blocks(tokens: readonly Token[]): ComponentChildren {
  return tokens.map((token, i) => <Fragment key={i}>{block(token)}</Fragment>);
}

function block(token: Token): ComponentChildren {
  switch (token.type) {
    case "heading":
      return heading(token as Tokens.Heading);
    case "paragraph":
      return <p>{inline((token as Tokens.Paragraph).tokens)}</p>;
    case "code":
      return <CodeBlock text={(token as Tokens.Code).text} language={(token as Tokens.Code).lang ?? ""} />;
    case "blockquote":
      return <blockquote>{blocks((token as Tokens.Blockquote).tokens)}</blockquote>;
    case "list":
      return list(token as Tokens.List);
    case "table":
      return table(token as Tokens.Table);
    case "hr":
      return <hr />;
    case "space":
    case "def":
      return null;
    case "text":
      return (token as Tokens.Text).tokens ? inline((token as Tokens.Text).tokens ?? []) : plain(token);
    default:
      return <p>{token.raw}</p>;
  }
}

function heading(token: Tokens.Heading): VNode {
  // The page has headings of its own, so an answer's begin two levels down.
  const Tag = `h${Math.min(6, token.depth + 2)}` as "h3";
  return <Tag>{inline(token.tokens)}</Tag>;
}

function list(token: Tokens.List): VNode {
  const items = token.items.map((item, i) => (
    <li key={i}>
      {item.task && <input type="checkbox" checked={item.checked ?? false} disabled aria-label="task" />}
      {blocks(item.tokens.filter((part) => part.type !== "checkbox"))}
    </li>
  ));
  return token.ordered ? <ol start={Number(token.start) || 1}>{items}</ol> : <ul>{items}</ul>;
}

function table(token: Tokens.Table): VNode {
  return (
    <div class="wide" role="region" aria-label="Table" tabIndex={0}>
      <table>
        <thead>
          <tr>
            {token.header.map((cell, i) => (
              <th key={i} scope="col">
                {inline(cell.tokens)}
              </th>
            ))}
          </tr>
        </thead>
        <tbody>
          {token.rows.map((row, i) => (
            <tr key={i}>
              {row.map((cell, j) => (
                <td key={j}>{inline(cell.tokens)}</td>
              ))}
            </tr>
          ))}
        </tbody>
      </table>
    </div>
  );
}

function inline(tokens: readonly Token[]): ComponentChildren {
  return tokens.map((token, i) => <Fragment key={i}>{span(token)}</Fragment>);
}

function span(token: Token): ComponentChildren {
  switch (token.type) {
    case "strong":
      return <strong>{inline((token as Tokens.Strong).tokens)}</strong>;
    case "em":
      return <em>{inline((token as Tokens.Em).tokens)}</em>;
    case "del":
      return <del>{inline((token as Tokens.Del).tokens)}</del>;
    case "codespan":
      return <code>{(token as Tokens.Codespan).text}</code>;
    case "br":
      return <br />;
    case "link":
      return link((token as Tokens.Link).href, inline((token as Tokens.Link).tokens), token.raw);
    case "image":
      return link((token as Tokens.Image).href, (token as Tokens.Image).text || "image", token.raw);
    case "escape":
      return (token as Tokens.Escape).text;
    case "text":
      return plain(token);
    default:
      return token.raw;
  }
}

function link(href: string, children: ComponentChildren, raw: string): ComponentChildren {
  return (
    <Link href={href} raw={raw}>
      {children}
    </Link>
  );
}

function Link({ href, raw, children }: { href: string; raw: string; children: ComponentChildren }) {
  const own = useContext(LinkResolver)(href);
  if (own !== null) return <a href={own}>{children}</a>;
  if (!SAFE_URL.test(href)) return <>{raw}</>;
  return (
    <a href={href} target="_blank" rel="noopener noreferrer nofollow">
      {children}
    </a>
  );
}

function plain(token: Token): string {
  return token.type === "text" ? unescaped((token as Tokens.Text).text) : token.raw;
}

const ENTITIES: Record<string, string> = { "&amp;": "&", "&lt;": "<", "&gt;": ">", "&quot;": '"', "&#39;": "'" };

/** Entities in an answer are read as characters; they end in a text node like all others. */
function unescaped(text: string): string {
  return text.replace(/&(?:amp|lt|gt|quot|#39);/gu, (entity) => ENTITIES[entity] ?? entity);
}
