"""No class name is defined twice in packages that import each other."""

from __future__ import annotations

import ast
from collections import defaultdict
from itertools import combinations
from pathlib import Path

import quicksilver

PACKAGE = Path(quicksilver.__file__).parent


def package_of(file: Path) -> str:
    """The package or the single module directly under `quicksilver`."""
    return file.relative_to(PACKAGE).parts[0].removesuffix(".py")


def imported_packages(tree: ast.Module) -> set[str]:
    modules = [node.module for node in ast.walk(tree) if isinstance(node, ast.ImportFrom) and node.module]
    return {module.split(".")[1] for module in modules if module.startswith("quicksilver.")}


def test_class_names_are_unique_in_packages_that_import_each_other() -> None:
    classes: dict[str, list[Path]] = defaultdict(list)
    imports: dict[str, set[str]] = defaultdict(set)
    for file in sorted(PACKAGE.rglob("*.py")):
        tree = ast.parse(file.read_text())
        imports[package_of(file)] |= {package_of(file)} | imported_packages(tree)
        for node in tree.body:
            if isinstance(node, ast.ClassDef):
                classes[node.name].append(file)
    twice = [
        f"{name}: {first.relative_to(PACKAGE)}, {second.relative_to(PACKAGE)}"
        for name, files in classes.items()
        for first, second in combinations(files, 2)
        if package_of(second) in imports[package_of(first)] or package_of(first) in imports[package_of(second)]
    ]
    assert twice == []
