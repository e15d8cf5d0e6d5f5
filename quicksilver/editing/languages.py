"""Languages for syntax-aware merging: which tree-sitter nodes are definitions, and detection of a text's language."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from functools import cache
from itertools import islice
from typing import Any

_FUNCTION, _TYPE, _SPACE, _KEY = "function", "type", "namespace", "key"
# The share of the best score from which a language is a candidate. Each candidate of a text with errors is parsed.
_LIKELY = 0.5
# Leading characters by which a language is guessed. A longer sample adds nothing: only a few matches are counted.
_SAMPLE_CHARS = 12_000


@dataclass(frozen=True, slots=True)
class Language:
    """`name` is the name of the tree-sitter grammar."""

    name: str
    # Node type -> kind of definition. Definitions match if kind and name are equal.
    definitions: dict[str, str]
    # A pattern per feature that is typical of the language. The number of matches ranks the candidates.
    hints: tuple[str, ...]
    # Nodes that contain a definition and add a prefix to it, such as decorators or `export`.
    wrappers: frozenset[str] = frozenset()
    # Lines around a fragment that does not parse alone, such as a method without its class.
    enclosures: tuple[tuple[str, str], ...] = ()
    line_comment: str = "//"
    # Node types of variables. They are definitions if their value is a function, class or object.
    variables: frozenset[str] = field(default_factory=frozenset)
    # What stands for an omitted function body that is an expression (`=> value`); empty if there are no such bodies.
    elided_value: str = ""
    # Whether functions of one name and scope may differ in their parameters.
    has_overloads: bool = False
    # Pattern of the beginning of a text, for formats of data and markup; empty for languages of code.
    data_opening: str = ""

    # Node types that may be a definition or have one as a child.
    candidates: frozenset[str] = field(init=False)

    def __post_init__(self) -> None:
        statements = ("expression_statement",) if self.variables else ()
        object.__setattr__(self, "candidates", self.wrappers.union(self.definitions, self.variables, statements))

    @property
    def is_data(self) -> bool:
        """Whether the text has keys, sections or elements (JSON, YAML, Markdown, HTML) instead of code."""
        return bool(self.data_opening)


ENCLOSING_NAME = "Enclosure"
_BRACES = ((f"class {ENCLOSING_NAME} {{", "}"),)
_ECMA_ENCLOSURES = (*_BRACES, (f"const {ENCLOSING_NAME} = {{", "}"))
_ECMA = {
    "function_declaration": _FUNCTION,
    "generator_function_declaration": _FUNCTION,
    "method_definition": _FUNCTION,
    "class_declaration": _TYPE,
    "abstract_class_declaration": _TYPE,
    "interface_declaration": _TYPE,
    "enum_declaration": _TYPE,
    "type_alias_declaration": _TYPE,
    "internal_module": _SPACE,
    "module": _SPACE,
}
_ECMA_VARIABLES = frozenset(
    ("lexical_declaration", "variable_declaration", "public_field_definition", "field_definition")
)
_TYPESCRIPT_HINTS = (
    *(r"\b(const|let) \w+(: [\w<>\[\]|]+)? =", r"^\s*(export )?(interface|type) \w+", r"^import .* from ['\"]"),
    *(r"\w\??: (string|number|boolean|\w+\[\])", r"=> ?[{(\w]", r"\b(private|public|readonly) \w+", r"==="),
)
_C = {"function_definition": _FUNCTION, "struct_specifier": _TYPE, "enum_specifier": _TYPE, "union_specifier": _TYPE}


def _types(*nodes: str) -> dict[str, str]:
    return dict.fromkeys(nodes, _TYPE)


def _functions(*nodes: str) -> dict[str, str]:
    return dict.fromkeys(nodes, _FUNCTION)


LANGUAGES = (
    Language(
        "python",
        {"function_definition": _FUNCTION, "class_definition": _TYPE},
        (
            r"^\s*(async )?def \w+.*:\s*$",
            r"^\s*class \w+.*:\s*$",
            r"^(from [\w.]+ )?import ",
            r"^\s*(if|for|with) .*:$",
        ),
        frozenset(("decorated_definition",)),
        line_comment="#",
    ),
    Language(
        "javascript",
        _ECMA,
        (
            r"\bfunction\b.*\{",
            r"\b(const|let|var) \w+ =",
            r"=> ?[{(\w]",
            r"require\(",
            r"^import .* from ['\"]",
            r"===",
        ),
        frozenset(("export_statement",)),
        _ECMA_ENCLOSURES,
        variables=_ECMA_VARIABLES,
        elided_value="elided",
    ),
    Language(
        "typescript",
        _ECMA,
        _TYPESCRIPT_HINTS,
        frozenset(("export_statement", "ambient_declaration")),
        _ECMA_ENCLOSURES,
        variables=_ECMA_VARIABLES,
        elided_value="elided",
    ),
    Language(
        "tsx",
        _ECMA,
        (*_TYPESCRIPT_HINTS, r"return \(\s*$", r"</[\w.]+>|/>", r"className="),
        frozenset(("export_statement", "ambient_declaration")),
        _ECMA_ENCLOSURES,
        variables=_ECMA_VARIABLES,
        elided_value="elided",
    ),
    Language(
        "go",
        {"function_declaration": _FUNCTION, "method_declaration": _FUNCTION, "type_declaration": _TYPE},
        (r"^func ", r"^package \w+$", r":= ", r"if err != nil", r"^type \w+ (struct|interface)"),
    ),
    Language(
        "rust",
        {
            **_functions("function_item", "macro_definition", "function_signature_item"),
            **_types("struct_item", "enum_item", "trait_item", "union_item"),
            "impl_item": "impl",
            "mod_item": _SPACE,
        },
        (r"^\s*(pub )?fn ", r"\blet (mut )?\w+", r"^use [\w:]+", r"\bimpl\b", r"^\s*#\[", r"&(mut |self)", r"->"),
    ),
    Language(
        "java",
        {
            **_functions("method_declaration", "constructor_declaration"),
            **_types("class_declaration", "interface_declaration", "enum_declaration", "record_declaration"),
            **_types("annotation_type_declaration"),
        },
        (
            *(r"^import (static )?[\w.]+\*?;$", r"^package [\w.]+;$", r"\bpublic (static |final )*\w+", r"^\s*@\w+"),
            *(r"\bfinal \w+", r"throws \w+", r"^\s+(int|void|long|double|boolean|String) \w+\(.*\) \{"),
        ),
        enclosures=_BRACES,
        has_overloads=True,
    ),
    Language(
        "c",
        _C,
        (r"^#include ", r"^(static )?\w+ \*?\w+\(.*\) ?\{?$", r"->\w+", r"^[ \t]*# *(define|ifdef|endif)", r"\bNULL\b"),
    ),
    Language(
        "cpp",
        {**_C, "class_specifier": _TYPE, "namespace_definition": _SPACE},
        (r"^#include ", r"std::", r"template ?<", r"namespace \w+", r"\b(public|private|protected):$", r"::\w+"),
        frozenset(("template_declaration",)),
        has_overloads=True,
    ),
    Language(
        "csharp",
        {
            **_functions(
                "method_declaration", "constructor_declaration", "property_declaration", "indexer_declaration"
            ),
            **_types("class_declaration", "interface_declaration", "struct_declaration", "record_declaration"),
            **_types("enum_declaration"),
            **dict.fromkeys(("namespace_declaration", "file_scoped_namespace_declaration"), _SPACE),
        },
        (
            r"^using [\w.]+;$",
            r"^namespace [\w.]+",
            r"\{ get;",
            r"\bpublic (static |override )*\w+",
            r"\bvar \w+ =",
            r"///",
            r"\b(string|bool|object) \w+\s*[,)=;{]",
            r"^\s*\[\w+(\(.*\))?\]\s*$",
        ),
        enclosures=_BRACES,
        elided_value="elided;",
        has_overloads=True,
    ),
    Language(
        "ruby",
        {"method": _FUNCTION, "singleton_method": _FUNCTION, "class": _TYPE, "module": _SPACE},
        (r"^\s*def [\w.?!]+", r"^\s*end$", r"^\s*(class|module) [A-Z]", r"\bdo( \|.*\|)?$", r"^\s*require "),
        line_comment="#",
    ),
    Language(
        "php",
        {
            **_functions("function_definition", "method_declaration"),
            **_types("class_declaration", "interface_declaration", "trait_declaration", "enum_declaration"),
        },
        (r"^<\?php", r"\$\w+", r"\$this->", r"\bfunction \w+\("),
        enclosures=(("<?php", ""), (f"<?php class {ENCLOSING_NAME} {{", "}")),
    ),
    Language(
        "kotlin",
        {"function_declaration": _FUNCTION, **_types("class_declaration", "object_declaration", "companion_object")},
        (r"\bfun \w*", r"\bval \w+", r"\bvar \w+: ", r"^import [\w.]+$", r"^package [\w.]+$", r"override fun"),
        elided_value="elided",
        has_overloads=True,
    ),
    Language(
        "swift",
        {
            **_functions("function_declaration", "init_declaration", "protocol_function_declaration"),
            **_types("class_declaration", "protocol_declaration"),
        },
        (r"\bfunc \w+", r"\blet \w+", r"guard let\b", r"^import \w+$", r"init\(", r"extension \w+", r"-> \w+"),
        has_overloads=True,
    ),
    Language("css", {"rule_set": _TYPE, "media_statement": _SPACE}, (r"^[.#]?[\w-]+.*\{$", r"^\s*[\w-]+: [^;{]+;$")),
    Language(
        "json",
        {"pair": _KEY},
        (r"^\s*\"[^\"]+\": ", r"^[\[{]\s*$", r"^\s*[\]}],?\s*$", r"\A\s*[\[{]\s*$"),
        enclosures=(("{", "}"),),
        data_opening=r"\s*[\[{]\s*$",
    ),
    Language(
        "yaml",
        {"block_mapping_pair": _KEY},
        (r"^[\w.-]+:( |$)", r"^\s+[\w.-]+:( |$)", r"^\s*- ", r"^---$"),
        line_comment="#",
        data_opening=r"(\s*#.*\n|\s*\n)*(---\s*$|- |['\"\w.-]+:(\s|$))",
    ),
    Language(
        "markdown",
        {"section": "section"},
        (r"^#{1,6} \w", r"^```", r"^\s*[-*] \w", r"\[[^\]]+\]\([^)]+\)", r"\*\*\w"),
        line_comment="<!--",
        data_opening=r"\s*(#{1,6} |---\s*$|<|!?\[|\w)",
    ),
    Language(
        "html",
        {"element": "element", "script_element": "element", "style_element": "element"},
        (r"^\s*<(html|head|body|div|p|ul|section|main|nav)\b", r"</\w+>\s*$", r"\A\s*<!doctype html", r"class=\""),
        line_comment="<!--",
        data_opening=r"\s*<[!\w]",
    ),
)


def placeholder(language: Language, after: str) -> str:
    """A line that parses in the place of omitted code below the line `after`. Python needs a statement in each block,
    and functions whose body is an expression need a value."""
    if after.rstrip().endswith(("=", "=>")) and language.elided_value:
        return language.elided_value
    if after.rstrip().endswith(")") and language.name == "csharp":
        return f"=> {language.elided_value}"
    closing = {"css": "*/", "html": "-->", "markdown": "-->"}.get(language.name, "")
    opening = "/*" if language.name == "css" else language.line_comment
    return "..." if language.name == "python" else f"{opening} ... {closing}".rstrip()


@cache
def parser(name: str) -> Any:
    """The tree-sitter parser of a grammar. Imported at first use, because the grammars take memory."""
    from tree_sitter_language_pack import get_parser

    return get_parser(name)  # type: ignore[arg-type]


def guess_languages(text: str, count: int = 5) -> list[Language]:
    """The likeliest languages of a text by its hints, best first. A text of data has one candidate: any text parses as
    Markdown, so that the parser's errors do not tell data from code."""
    sample = text[:_SAMPLE_CHARS]
    if sample.lstrip().startswith("<?php"):
        return [language for language in LANGUAGES if language.name == "php"]
    counts = {hint: _count(hint, sample) for hint in {hint for language in LANGUAGES for hint in language.hints}}
    scores = {each.name: sum(map(counts.__getitem__, each.hints)) for each in LANGUAGES if _may_be(sample, each)}
    ranked = [each for each in sorted(LANGUAGES, key=lambda each: -scores.get(each.name, 0)) if scores.get(each.name)]
    code = [each for each in ranked if not each.is_data]
    best = scores[code[0].name] if code else 0
    if ranked and ranked[0].is_data and scores[ranked[0].name] > 1.2 * best:
        return ranked[:1]
    return [each for each in code[:count] if scores[each.name] >= _LIKELY * best]


def _may_be(text: str, language: Language) -> bool:
    return not language.is_data or re.match(language.data_opening, text, re.MULTILINE) is not None


def _count(hint: str, text: str) -> int:
    """Few matches of each hint suffice: many distinct features count more than many matches of one."""
    return sum(1 for _ in islice(re.finditer(hint, text, re.MULTILINE), 6))
