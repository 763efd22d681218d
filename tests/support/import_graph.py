"""Reads the imports of a package without running it, and says which of them break the order of its layers.

Every import statement counts, also one inside a function and one under ``TYPE_CHECKING``, and so does a literal
``importlib.import_module("...")``.  That importing ``a.b`` also runs ``a/__init__.py`` does not count: Python does
that, and nobody wrote it.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

Layers = Sequence[frozenset[str]]
"""Top-level names of a package, the lowest layer first."""


@dataclass(frozen=True, slots=True)
class Import:
    """One imported name, as written: module ``importer``, line ``line``, dotted ``target``."""

    importer: str
    line: int
    target: str

    def __str__(self) -> str:
        return f"{self.importer}:{self.line} imports {self.target}"


def read_imports(source_root: Path, package: str) -> dict[str, list[Import]]:
    """The imports of each module of ``package`` (a folder in ``source_root``), by dotted module name.

    ``from m import n`` is an import of the module ``m.n`` when the package has one, else of ``m``.
    """
    files = {_module_name(path, source_root): path for path in sorted((source_root / package).rglob("*.py"))}
    return {
        module: [
            Import(module, line, _resolve(target, files))
            for line, target in _targets(ast.parse(path.read_text(encoding="utf-8")), module, path)
        ]
        for module, path in files.items()
    }


def find_cycle(imports: Mapping[str, Sequence[Import]]) -> list[str]:
    """Modules that import each other in a ring, the first one repeated at the end; empty when there is none."""
    done: set[str] = set()

    def visit(module: str, trail: list[str]) -> list[str]:
        if module in trail:
            return [*trail[trail.index(module) :], module]
        if module in done:
            return []
        for found in imports[module]:
            if found.target in imports and (cycle := visit(found.target, [*trail, module])):
                return cycle
        done.add(module)
        return []

    for module in imports:
        if cycle := visit(module, []):
            return cycle
    return []


def upward_imports(imports: Mapping[str, Sequence[Import]], package: str, layers: Layers) -> list[str]:
    """What goes against the layers: an import from below to above, or a top-level name that has no layer.

    Names that share a layer must not import each other.  The package's own ``__init__`` stands above all of them.
    """
    heights = {name: height for height, layer in enumerate(layers) for name in layer}
    complaints: list[str] = []
    for module, found in imports.items():
        if module == package:
            continue
        top = _top(module, package)
        if top not in heights:
            complaints.append(f"{module} has no layer; give {top!r} a place")
            continue
        for item in found:
            if item.target == package:
                complaints.append(f"{item}, which stands above everything")
            elif item.target.startswith(f"{package}."):
                other = _top(item.target, package)
                if other != top and heights.get(other, len(layers)) >= heights[top]:
                    complaints.append(f"{item}, which is not below {top!r}")
    return complaints


def imports_of(imports: Mapping[str, Sequence[Import]], roots: frozenset[str]) -> Iterator[Import]:
    """Imports of any module in ``roots`` or below it."""
    for found in imports.values():
        for item in found:
            if any(item.target == root or item.target.startswith(f"{root}.") for root in roots):
                yield item


def _top(module: str, package: str) -> str:
    return module.removeprefix(f"{package}.").split(".", 1)[0]


def _module_name(path: Path, source_root: Path) -> str:
    parts = path.relative_to(source_root).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def _resolve(target: str, modules: Mapping[str, Path]) -> str:
    parent = target.rpartition(".")[0]
    return parent if target not in modules and parent in modules else target


def _targets(tree: ast.Module, module: str, path: Path) -> Iterator[tuple[int, str]]:
    for node in ast.walk(tree):
        match node:
            case ast.Import(names=names):
                yield from ((node.lineno, alias.name) for alias in names)
            case ast.ImportFrom(names=names):
                origin = _origin(node, module, path)
                yield from ((node.lineno, f"{origin}.{alias.name}") for alias in names)
            case ast.Call(
                func=ast.Attribute(attr="import_module") | ast.Name(id="import_module" | "__import__"),
                args=[ast.Constant(value=str(target)), *_],
            ):
                yield node.lineno, target
            case _:
                pass


def _origin(node: ast.ImportFrom, module: str, path: Path) -> str:
    if node.level == 0:
        return node.module or ""
    drop = node.level - 1 if path.name == "__init__.py" else node.level
    parts = module.split(".")
    return ".".join([*parts[: len(parts) - drop], *([node.module] if node.module else [])])
