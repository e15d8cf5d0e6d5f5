"""Code that a merge by definitions keeps: members, overloads, macros and conditionals that are not shown."""

from __future__ import annotations

import pytest

from quicksilver.editing.apply import Copy, merge
from quicksilver.editing.syntax_merge import merge_by_syntax


def merged(original: str, update: str) -> str:
    """The merge, which must need no model."""
    pieces = merge(original, update)
    assert all(isinstance(piece, Copy) for piece in pieces), pieces
    return certain(original, update)


def certain(original: str, update: str) -> str:
    """The merged file in which the spans that are left to the model are unchanged."""
    return "".join(piece.text if isinstance(piece, Copy) else piece.original for piece in merge(original, update))


GO = """\
package a

type Point struct {
\tX int
\tY int
}

func norm(p Point) int {
\treturn p.X
}
"""
TYPESCRIPT = """\
type Point = {
  x: number
  y: number
}

export function norm(p: Point): number {
  return p.x
}
"""
CSHARP = """\
using System;

namespace Shapes;

public class Point
{
    public int X
    {
        get { return x; }
        set { x = value; }
    }

    public int Norm(int scale) =>
        scale * X;

    public int Zero()
    {
        return 0;
    }
}
"""
KOTLIN = """\
package shapes

class Point(val x: Int) {
    fun norm(scale: Int): Int =
        if (scale > 0) scale * x
        else x

    fun zero() = listOf(
        0,
        1,
    )

    companion object {
        fun origin(): Point {
            return Point(0)
        }
    }
}
"""


@pytest.mark.parametrize(
    ("original", "update", "old", "new"),
    [
        (GO, "type Point struct {\n\t// ...\n}\n\nfunc norm(p Point) int {\n\treturn p.Y\n}", "p.X", "p.Y"),
        (GO, "// ...\ntype Point struct {\n\t// ...\n\tZ int\n}\n\n// ...", "Y int\n", "Y int\n\tZ int\n"),
        (
            TYPESCRIPT,
            "type Point = {\n  // ...\n}\n\n" + TYPESCRIPT[TYPESCRIPT.index("export") :].replace("p.x", "p.y"),
            "p.x",
            "p.y",
        ),
        (
            CSHARP,
            "public int X\n{\n    // ...\n}\n\npublic int Zero()\n{\n    return 1;\n}",
            "return 0",
            "return 1",
        ),
    ],
)
def test_the_members_of_an_elided_type_or_property_are_kept(original: str, update: str, old: str, new: str) -> None:
    assert merged(original, update) == original.replace(old, new)


@pytest.mark.parametrize(
    ("original", "update", "old", "new"),
    [
        (CSHARP, "public int Norm(int factor) =>\n    // ...", "int scale", "int factor"),
        (KOTLIN, "class Point(val x: Int) {\n    fun norm(s: Int): Int =\n        // ...\n}", "scale: Int", "s: Int"),
        (
            KOTLIN,
            "class Point(val x: Int) {\n    // ...\n    fun zero(): List<Int> = listOf(\n        // ...\n    )\n"
            "    // ...\n}",
            "zero() =",
            "zero(): List<Int> =",
        ),
        (
            KOTLIN,
            "class Point(val x: Int) {\n    // ...\n    companion object {\n        fun origin(): Point {\n"
            "            return Point(1)\n        }\n    }\n}",
            "Point(0)",
            "Point(1)",
        ),
    ],
)
def test_functions_whose_body_is_an_expression_may_be_elided(original: str, update: str, old: str, new: str) -> None:
    assert merged(original, update) == original.replace(old, new)


def test_a_new_function_after_an_elided_expression_does_not_take_its_body() -> None:
    copy = "    fun copied(scale: Int): Int =\n        if (scale > 0) scale * x\n        else x\n"
    elided = "    fun norm(scale: Int): Int =\n        // ...\n"
    update = f"class Point(val x: Int) {{\n    // ...\n{elided}\n{copy}\n    // ...\n}}"
    assert merged(KOTLIN, update) == KOTLIN.replace("        else x\n", f"        else x\n\n{copy}")


def test_a_function_with_other_parameters_and_another_body_does_not_replace_an_overload() -> None:
    original = "class A {\n  void add(int a) {\n    one(a);\n    two(a);\n  }\n\n  void b() {\n    x();\n  }\n}\n"
    update = "class A {\n  // ...\n\n  void add(String name, int b) {\n    sum(name, b);\n  }\n}"
    assert original in certain(original, update)
    changed = "class A {\n  // ...\n\n  void add(int a, int b) {\n    one(a);\n    two(b);\n  }\n\n  // ...\n}"
    assert merged(original, changed) == original.replace("int a)", "int a, int b)").replace("two(a)", "two(b)")


CPP = """\
#include <vector>

BEGIN_NAMESPACE_A
int& first(std::vector<int>& values) {
  return values[0];
}
END_NAMESPACE_A

#if defined(FAST)
int second() {
  return 2;
}
#endif

int third() {
  return 3;
}
"""


def test_a_macro_above_a_function_of_c_is_kept() -> None:
    update = "int& first(std::vector<int>& values) {\n  return values.front();\n}\n// ..."
    assert merged(CPP, update) == CPP.replace("values[0]", "values.front()")


def test_a_function_that_returns_a_reference_is_found_by_its_name() -> None:
    update = "// ...\nint& first(std::vector<int>& all) {\n  // ...\n}\n// ..."
    assert merged(CPP, update) == CPP.replace("int>& values", "int>& all")


def test_one_end_of_a_conditional_is_not_removed_with_a_function() -> None:
    update = "int& first(std::vector<int>& values) {\n  // ...\n}\n\nint second() {\n  // ...\n}\n\n// ..."
    assert certain(CPP, update) == CPP


def test_a_snippet_with_an_error_that_the_file_does_not_have_is_not_merged_by_syntax() -> None:
    original = "#include <a>\n\nint f( {\n}\n\nint g() {\n  one();\n  two();\n}\n"
    assert merge_by_syntax(original.split("\n"), ["int g() {", "  if (x {", "}"]) is None


RUST = """\
use std::fmt;

impl Point {
    pub fn new(x: i32) -> Self {
        Point { x }
    }

    pub fn norm(&self) -> i32 {
        let value = self.x;
        value.abs()
    }

    pub fn zero() -> Self {
        Point { x: 0 }
    }
}
"""


def test_members_that_a_container_without_markers_does_not_show_are_kept() -> None:
    update = "impl Point {\n    pub fn zero() -> Self {\n        Point { x: 1 }\n    }\n}"
    assert merged(RUST, update) == RUST.replace("x: 0", "x: 1")
    added = "    pub fn one() -> Self {\n        Point { x: 1 }\n    }\n"
    assert merged(RUST, f"impl Point {{\n{added}}}") == RUST[:-2] + f"\n{added}}}\n"


def test_a_container_that_repeats_most_of_the_old_one_replaces_it() -> None:
    body = RUST[RUST.index("impl") :]
    update = body.replace("    pub fn zero() -> Self {\n        Point { x: 0 }\n    }\n", "").replace("}\n\n}", "}\n}")
    assert merged(RUST, f"{update}\n// ...") == RUST[: RUST.index("impl")] + update


def test_blank_lines_of_the_snippet_keep_their_space() -> None:
    elided = "    pub fn zero() -> Self {\n        // ...\n    }\n"
    update = f"impl Point {{\n    // ...\n{elided}    \n    pub fn one() {{\n    }}\n}}"
    assert merged(RUST, update) == RUST[:-2] + "    \n    pub fn one() {\n    }\n}\n"


def test_a_function_of_more_than_half_of_the_file_is_not_the_whole_file() -> None:
    body = "".join(f"    a{number} = {number}\n" for number in range(20))
    original = f"import os\n\nLIMIT = 3\n\n\ndef f(path):\n{body}\n\nprint(f(1))\nprint(f(2))\n"
    assert merged(original, f"def f(path):\n{body}".replace("a5 = 5", "b = 5")) == original.replace("a5 = 5", "b = 5")


def test_comments_above_the_first_statement_belong_to_the_body() -> None:
    original = "class A\n  # One.\n  #\n  # Two.\n  def f(x)\n    x\n  end\n\n  def g\n    1\n  end\nend\n"
    update = "class A\n  # ...\n  def f(x, y)\n    # ...\n  end\n  # ...\nend"
    assert merged(original, update) == original.replace("f(x)", "f(x, y)")


def test_a_value_that_begins_on_the_next_line_may_be_elided() -> None:
    original = CSHARP.replace(" =>\n        scale", "\n        => scale")
    update = "public class Point\n{\n    // ...\n    public int Norm(int factor)\n        // ...\n\n    // ...\n}"
    assert merged(original, update) == original.replace("int scale", "int factor")


@pytest.mark.parametrize("indent", ["", "    "])
def test_a_method_without_its_class_is_not_taken_for_the_function_of_that_name(indent: str) -> None:
    function = "def route(method, path):\n    return method + path\n"
    method = "def route(self, *paths):\n    first = paths[0]\n    return first\n"
    original = f"import os\n\n\n{function}\n\nclass Table:\n" + indent_lines(method, "    ") + "\n    size = 1\n"
    update = indent_lines(method.replace("paths[0]", "paths[1]"), indent)
    assert merged(original, update) == original.replace("paths[0]", "paths[1]")


def indent_lines(text: str, indent: str) -> str:
    return "".join(indent + line for line in text.splitlines(keepends=True))
