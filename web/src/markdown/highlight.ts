// Code to a tree of classed spans, through lowlight (highlight.js without HTML). Only hljs- classes leave this file.

import bash from "highlight.js/lib/languages/bash";
import c from "highlight.js/lib/languages/c";
import cpp from "highlight.js/lib/languages/cpp";
import css from "highlight.js/lib/languages/css";
import diff from "highlight.js/lib/languages/diff";
import go from "highlight.js/lib/languages/go";
import java from "highlight.js/lib/languages/java";
import javascript from "highlight.js/lib/languages/javascript";
import json from "highlight.js/lib/languages/json";
import python from "highlight.js/lib/languages/python";
import rust from "highlight.js/lib/languages/rust";
import sql from "highlight.js/lib/languages/sql";
import typescript from "highlight.js/lib/languages/typescript";
import xml from "highlight.js/lib/languages/xml";
import yaml from "highlight.js/lib/languages/yaml";
import { createLowlight } from "lowlight";

export type Node = { type: "text"; value: string } | { type: "element"; classes: string[]; children: Node[] };
export type Highlight = (text: string, language: string) => Node[] | null;

const languages = { bash, c, cpp, css, diff, go, java, javascript, json, python, rust, sql, typescript, xml, yaml };
const lowlight = createLowlight(languages);

export const highlight: Highlight = (text, language) =>
  lowlight.registered(language) ? convert(lowlight.highlight(language, text).children as Found[]) : null;

interface Found {
  type: string;
  value?: string;
  properties?: { className?: unknown };
  children?: Found[];
}

function convert(found: readonly Found[]): Node[] {
  return found.map((node) =>
    node.type === "text"
      ? { type: "text", value: node.value ?? "" }
      : { type: "element", classes: classesOf(node), children: convert(node.children ?? []) },
  );
}

function classesOf(node: Found): string[] {
  const names = Array.isArray(node.properties?.className) ? node.properties.className : [];
  return names.map(String).filter((name) => /^hljs-[a-z_-]+$|^[a-z]+_$/u.test(name));
}
