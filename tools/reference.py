"""Write the generated parts of docs/reference: command line, Python API, configuration and metrics.

`python tools/reference.py` writes, `--check` fails where a page is stale. Everything comes from the code: typer's
commands, docstrings and signatures, the fields of the configuration records, the registered metrics.
"""

from __future__ import annotations

import ast
import inspect
import re
import sys
import textwrap
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))

from tools.sections import ROOT, table, write_pages

PAGES = ROOT / "docs/reference"
RECORDS = {
    "EngineConfig": "quicksilver.engine.config",
    "LoadConfig": "quicksilver.engine.load",
    "ServerConfig": "quicksilver.server.config",
    "Timeouts": "quicksilver.server.config",
    "PoolConfig": "quicksilver.constrain.compile.pool",
    "AccountsConfig": "quicksilver.accounts.config",
}
PYTHON_RECORDS = {
    "DecodeParams": "quicksilver.core",
    "DecoderParams": "quicksilver.dialect",
    "Answer": "quicksilver.llm",
    "Piece": "quicksilver.llm",
    "Delta": "quicksilver.core",
    "Frame": "quicksilver.core",
    "TokenLogprob": "quicksilver.core",
    "Usage": "quicksilver.core",
    "Message": "quicksilver.text.chat",
}


def main() -> int:
    pages = {
        PAGES / "cli.md": {"commands": commands()},
        PAGES / "configuration.md": {"serve": serve_options()}
        | {name: record(name, RECORDS[name]) for name in RECORDS},
        PAGES / "python.md": {name: methods(name, "quicksilver.llm") for name in ("LLM", "AsyncLLM")}
        | {"errors": errors()}
        | {name: record(name, PYTHON_RECORDS[name]) for name in PYTHON_RECORDS},
        PAGES / "metrics.md": {"metrics": metrics()},
    }
    return write_pages(pages)


def root_command() -> Any:
    from typer.main import get_command

    return get_command(import_module("quicksilver.cli.app").app)


def commands() -> str:
    """Every command with its help and a table of its parameters."""
    return "\n\n".join(command_section(path, command) for path, command in walk_commands("quicksilver", root_command()))


def walk_commands(path: str, command: Any) -> Iterator[tuple[str, Any]]:
    for name, child in command.commands.items():
        if hasattr(child, "commands"):
            yield from walk_commands(f"{path} {name}", child)
        else:
            yield f"{path} {name}", child


def command_section(path: str, command: Any) -> str:
    arguments = " ".join(p.name.upper() for p in command.params if p.param_type_name == "argument")
    lines = [f"## {path}", f"```text\n{path} {arguments}".rstrip() + " [OPTIONS]\n```", join_lines(command.help or "")]
    options = [option_row(p) for p in command.params if p.param_type_name == "option"]
    if options:
        lines.append(table(("option", "default", "meaning"), options))
    return "\n\n".join(line for line in lines if line)


def option_row(option: Any) -> tuple[str, ...]:
    meaning = option.help or ""
    if option.envvar:
        meaning = f"{meaning} Environment: `{option.envvar}`.".strip()
    return ", ".join(f"`{name}`" for name in option.opts), default_of(option), meaning


def default_of(option: Any) -> str:
    value = option.default
    if isinstance(option.show_default, str):
        return option.show_default
    if callable(value) or value is None or value == "" or "Sentinel" in type(value).__name__:
        return "required" if option.required else ""
    if isinstance(value, bool):
        return "on" if value else "off"
    if isinstance(value, list | tuple):
        return ""
    return f"`{getattr(value, 'value', value)}`"


def serve_options() -> str:
    """The settings of `quicksilver serve` by flag, environment variable and name in the TOML file."""
    options = [p for p in root_command().commands["serve"].params if p.name != "config"]
    rows = [
        (f"`--{p.name.replace('_', '-')}`", f"`{p.envvar}`", f"`{p.name}`", default_of(p), p.help or "")
        for p in options
    ]
    return table(("flag", "environment", "TOML", "default", "meaning"), rows)


def record(name: str, module: str) -> str:
    """A dataclass: its docstring and a table of its fields with what the source says of each."""
    cls = getattr(import_module(module), name)
    rows = [(f"`{field}`", code(kind), code(default), text) for field, kind, default, text in fields_of(cls)]
    about = inspect.getdoc(cls) or ""
    # A dataclass without a docstring gets its signature as one.
    about = "" if about.startswith(f"{name}(") else join_lines(about) + "\n\n"
    return about + table(("field", "type", "default", "meaning"), rows)


def code(text: str) -> str:
    return f"`{text}`" if text else ""


def fields_of(cls: type) -> Iterator[tuple[str, str, str, str]]:
    """Name, type, default and comment of each field; the comment is above it, beside it, or a string below it."""
    source = textwrap.dedent(inspect.getsource(cls))
    lines = source.splitlines()
    body = ast.parse(source).body[0].body  # type: ignore[attr-defined]
    for node, after in zip(body, [*body[1:], None], strict=True):
        if not isinstance(node, ast.AnnAssign):
            continue
        default = ast.unparse(node.value) if node.value else ""
        if isinstance(node.value, ast.Call) and getattr(node.value.func, "id", "") == "setting":
            default, meaning = (ast.unparse(argument) for argument in node.value.args)
            yield ast.unparse(node.target), ast.unparse(node.annotation), default, ast.literal_eval(meaning)
            continue
        default = re.sub(r"^field\(default_factory=(?:lambda: )?(.*)\)$", r"\1", default)
        meaning = string_of(after) or comment_above(lines, node.lineno) or comment_beside(lines[node.lineno - 1])
        yield ast.unparse(node.target), ast.unparse(node.annotation), default, meaning


def string_of(node: ast.stmt | None) -> str:
    if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str):
        return join_lines(inspect.cleandoc(node.value.value))
    return ""


def comment_above(lines: list[str], line_number: int) -> str:
    above: list[str] = []
    for line in reversed(lines[: line_number - 1]):
        if not line.strip().startswith("#"):
            break
        above.insert(0, line.strip().lstrip("# "))
    return " ".join(above)


def comment_beside(line: str) -> str:
    return line.split("  # ", 1)[1] if "  # " in line else ""


def methods(name: str, module: str) -> str:
    """The public methods of a class: signature and docstring."""
    cls = getattr(import_module(module), name)
    parts = [join_paragraphs(inspect.getdoc(cls) or ""), signature(name, cls.__init__)]
    for method, function in inspect.getmembers(cls, inspect.isfunction):
        if not method.startswith("_"):
            parts += [
                f"### {name}.{method}",
                signature(method, function),
                join_paragraphs(inspect.getdoc(function) or ""),
            ]
    return "\n\n".join(part for part in parts if part)


def signature(name: str, function: Any) -> str:
    given = inspect.signature(function)
    parameters = [p for p in given.parameters.values() if p.name != "self"]
    inner = ",\n".join(f"    {p}".replace("'", "") for p in parameters)
    returns = "" if name[0].isupper() else f" -> {given.return_annotation}"
    return f"```text\n{name}(\n{inner},\n){returns}\n```" if inner else f"```text\n{name}(){returns}\n```"


def errors() -> str:
    module = import_module("quicksilver.errors")
    classes = [c for _, c in inspect.getmembers(module, inspect.isclass) if issubclass(c, module.QuicksilverError)]
    rows = [(f"`{c.__name__}`", str(c.status), f"`{c.code}`", join_lines(inspect.getdoc(c) or "")) for c in classes]
    return table(("class", "HTTP status", "code", "meaning"), sorted(rows, key=lambda row: (row[1], row[0])))


def metrics() -> str:
    """The families that `/metrics` renders. Those of the engines are rendered for no model at all."""
    module = import_module("quicksilver.server.http.metrics")
    made = module.Metrics()
    made_text = module.render(made, []).decode()
    labels = {c._name: ", ".join(c._labelnames) for c in made.registry._collector_to_names if hasattr(c, "_name")}
    kinds = dict(re.findall(r"^# TYPE (\S+) (\S+)$", made_text, re.MULTILINE))
    rows = []
    for name, text in re.findall(r"^# HELP (\S+) (.*)$", made_text, re.MULTILINE):
        if not name.endswith("_created"):
            rows.append((f"`{name}`", kinds[name], labels.get(name.removesuffix("_total"), "model"), text + "."))
    return table(("metric", "kind", "labels", "meaning"), sorted(rows))


def join_lines(text: str) -> str:
    return " ".join(text.split())


def join_paragraphs(text: str) -> str:
    return "\n\n".join(join_lines(paragraph) for paragraph in text.split("\n\n"))


if __name__ == "__main__":
    sys.exit(main())
