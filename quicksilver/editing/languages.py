"""Languages for syntax-aware merging: which tree-sitter nodes are definitions, and detection of a text's language."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass, field
from functools import cache
from typing import Any

_FUNCTION, _TYPE, _SPACE = "function", "type", "namespace"


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
            r"\brequire\(",
            r"^import .* from ['\"]",
            r"===",
        ),
        frozenset(("export_statement",)),
        _ECMA_ENCLOSURES,
        variables=_ECMA_VARIABLES,
    ),
    Language(
        "typescript",
        _ECMA,
        (
            *(r"\b(const|let) \w+(: [\w<>\[\]|]+)? =", r"^\s*(export )?(interface|type) \w+", r"^import .* from ['\"]"),
            *(r"\w+\??: (string|number|boolean|\w+\[\])", r"=> ?[{(\w]", r"\b(private|public|readonly) \w+", r"==="),
        ),
        frozenset(("export_statement", "ambient_declaration")),
        _ECMA_ENCLOSURES,
        variables=_ECMA_VARIABLES,
    ),
    Language(
        "tsx", _ECMA, (r"return \(\s*$", r"</\w+>", r"\bclassName="), frozenset(("export_statement",)), _ECMA_ENCLOSURES
    ),
    Language(
        "go",
        {"function_declaration": _FUNCTION, "method_declaration": _FUNCTION, "type_declaration": _TYPE},
        (r"^func ", r"^package \w+$", r":= ", r"\bif err != nil", r"^type \w+ (struct|interface)"),
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
            *(r"\bfinal \w+", r"\bthrows \w+", r"^\s+(int|void|long|double|boolean|String) \w+\(.*\) \{"),
        ),
        enclosures=_BRACES,
    ),
    Language(
        "c", _C, (r"^#include ", r"^(static )?\w+ \*?\w+\(.*\) ?\{?$", r"->\w+", r"^#(define|ifdef|endif)", r"\bNULL\b")
    ),
    Language(
        "cpp",
        {**_C, "class_specifier": _TYPE, "namespace_definition": _SPACE},
        (r"^#include ", r"\bstd::", r"\btemplate ?<", r"\bnamespace \w+", r"\b(public|private|protected):$", r"::\w+"),
        frozenset(("template_declaration",)),
    ),
    Language(
        "csharp",
        {
            **_functions(
                "method_declaration", "constructor_declaration", "property_declaration", "indexer_declaration"
            ),
            **_types("class_declaration", "interface_declaration", "struct_declaration", "record_declaration"),
            **_types("enum_declaration"),
            "namespace_declaration": _SPACE,
        },
        (
            r"^using [\w.]+;$",
            r"^namespace [\w.]+",
            r"\{ get;",
            r"\bpublic (static |override )*\w+",
            r"\bvar \w+ =",
            r"///",
        ),
        enclosures=_BRACES,
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
        {"function_declaration": _FUNCTION, "class_declaration": _TYPE, "object_declaration": _TYPE},
        (r"\bfun \w*", r"\bval \w+", r"\bvar \w+: ", r"^import [\w.]+$", r"^package [\w.]+$", r"\boverride fun"),
    ),
    Language(
        "swift",
        {
            **_functions("function_declaration", "init_declaration", "protocol_function_declaration"),
            **_types("class_declaration", "protocol_declaration"),
        },
        (r"\bfunc \w+", r"\blet \w+", r"\bguard let\b", r"^import \w+$", r"\binit\(", r"\bextension \w+", r"-> \w+"),
    ),
    Language("css", {"rule_set": _TYPE, "media_statement": _SPACE}, (r"^[.#]?[\w-]+.*\{$", r"^\s*[\w-]+: [^;{]+;$")),
)


@cache
def parser(name: str) -> Any:
    """The tree-sitter parser of a grammar. Imported at first use, because the grammars take memory."""
    from tree_sitter_language_pack import get_parser

    return get_parser(name)  # type: ignore[arg-type]


def guess_languages(text: str, count: int = 3) -> list[Language]:
    """The likeliest languages of a text by its hints, best first."""
    sample = text[:60_000]
    scores = {language.name: _score(sample, language.hints) for language in LANGUAGES}
    ranked = sorted(LANGUAGES, key=lambda language: -scores[language.name])
    return [language for language in ranked if scores[language.name] > 0][:count]


def _score(text: str, hints: Iterable[str]) -> float:
    """Few matches of each hint suffice: many distinct features count more than many matches of one."""
    return sum(min(len(re.findall(hint, text, re.MULTILINE)), 6) for hint in hints)
