"""Write the package map of docs/design/architecture.md from the import graph and the layer contract.

`python tools/architecture_map.py` writes, `--check` fails where the map is stale. A package's description is the first
sentence of its docstring.
"""

from __future__ import annotations

import ast
import re
import sys
import tomllib
from pathlib import Path

import grimp

sys.path.insert(0, str(Path(__file__).parents[1]))

from tools.sections import ROOT, table, write_pages

PACKAGE = ROOT / "quicksilver"


def layers() -> list[list[str]]:
    """The layers of the import contract, highest first; names of packages that do not exist yet are left out."""
    contracts = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["importlinter"]["contracts"]
    (names,) = (contract["layers"] for contract in contracts if contract["type"] == "layers")
    found = [re.findall(r"\w+", line) for line in names]
    return [[name for name in layer if exists(name)] for layer in found]


def exists(name: str) -> bool:
    return (PACKAGE / name).is_dir() or (PACKAGE / f"{name}.py").is_file()


def description(path: Path) -> str:
    """The first sentence of a module's or package's docstring."""
    source = path / "__init__.py" if path.is_dir() else path.with_suffix(".py")
    text = ast.get_docstring(ast.parse(source.read_text())) if source.is_file() else None
    first = " ".join((text or "").split("\n\n")[0].split())
    return re.split(r"(?<=[.;])\s", first)[0].rstrip(".;")


def imported(graph: grimp.ImportGraph, name: str) -> list[str]:
    """Packages that `name` imports directly, in the order of the layers."""
    inside = graph.find_descendants(f"quicksilver.{name}") | {f"quicksilver.{name}"}
    found = {target for module in inside for target in graph.find_modules_directly_imported_by(module)}
    targets = {target.split(".")[1] for target in found - {"quicksilver"}}
    order = [package for layer in layers() for package in layer]
    return [package for package in order if package in targets - {name}]


def package_rows(graph: grimp.ImportGraph) -> list[tuple[str, ...]]:
    rows = []
    for number, layer in enumerate(layers(), 1):
        for name in layer:
            path = PACKAGE / name
            needs = ", ".join(f"`{package}`" for package in imported(graph, name))
            rows.append((str(number), f"`{name}`", description(path), needs))
            for folder in sorted(p for p in path.glob("*/") if (p / "__init__.py").is_file()):
                rows.append(("", f"`{name}/{folder.name}`", description(folder), ""))
    return rows


def main() -> int:
    graph = grimp.build_graph("quicksilver", cache_dir=None)
    rows = package_rows(graph)
    section = table(("layer", "package", "what it provides", "imports"), rows)
    return write_pages({ROOT / "docs/design/architecture.md": {"packages": section}})


if __name__ == "__main__":
    sys.exit(main())
