"""Outlines of source texts: line ranges, names, nesting, decorators and syntax errors."""

from __future__ import annotations

from quicksilver.editing.languages import LANGUAGES, Language
from quicksilver.editing.outline import best_outline, read_outline


def language(name: str) -> Language:
    return next(each for each in LANGUAGES if each.name == name)


PYTHON = [
    *("import os", "", "# Doubles.", "@cached", "def double(x):", "    return 2 * x"),
    *("", "", "class A:", "    def f(self):", "        pass", ""),
]


def test_definitions_have_the_lines_of_their_parts() -> None:
    double, a = read_outline(PYTHON, language("python")).definitions
    assert (double.kind, double.name) == ("function", "double")
    assert (double.start, double.head, double.low, double.end) == (2, 4, 5, 6)
    assert [child.name for child in a.children] == ["f"]
    assert (a.low, a.high, a.end) == (9, 11, 11)


def test_methods_of_go_carry_their_receiver() -> None:
    lines = ["func (t *Tree) Add(n int) {", "}", "", "func Add() {", "}"]
    assert [d.name for d in read_outline(lines, language("go")).definitions] == ["Tree.Add", "Add"]


def test_a_method_without_its_class_is_parsed_in_an_enclosure() -> None:
    outline = read_outline(["public int f() {", "  return 1;", "}"], language("java"))
    assert [(d.name, d.start, d.end) for d in outline.definitions] == [("f", 0, 3)]
    assert outline.num_errors == 0


def test_syntax_errors_are_counted() -> None:
    assert read_outline(["def f(:", "    return ["], language("python")).num_errors > 0


def test_the_language_with_the_fewest_errors_wins() -> None:
    outline = best_outline(PYTHON, [language("java"), language("python")])
    assert outline is not None
    assert outline.language.name == "python"
    assert best_outline(["plain text"], [language("python")]) is None


def test_many_nested_wrappers_do_not_exhaust_the_stack() -> None:
    lines = [*["template <class T>"] * 1500, "void f() {", "}", "", "void g() {", "}"]
    names = [definition.name for definition in read_outline(lines, language("cpp")).definitions]
    assert names == ["g"]


def test_decorators_may_have_arguments_over_several_lines() -> None:
    lines = ["@option(", '    "--name",', ")", "def f(name):", "    return name"]
    (found,) = read_outline(lines, language("python")).definitions
    assert (found.start, found.head, found.low) == (0, 3, 4)
    lines = ["class A {", "    @Test(", "        timeout = 1", "    )", "    void f() {", "    }", "}"]
    (method,) = read_outline(lines, language("java")).definitions[0].children
    assert (method.start, method.head) == (1, 4)


def test_a_definition_that_is_not_closed_does_not_end_below_the_fragment() -> None:
    """Inside an enclosure it would take the closing line of that."""
    java = next(language for language in LANGUAGES if language.name == "java")
    lines = ["@Override", "public int f() {", "  return 1;"]
    outline = read_outline(lines, java)
    assert all(definition.end <= len(lines) for definition in outline.walk())
    assert outline.num_errors


def test_blank_markdown_has_no_sections() -> None:
    markdown = next(language for language in LANGUAGES if language.name == "markdown")
    assert read_outline(["", ""], markdown).definitions == ()
