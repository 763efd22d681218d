"""Where the module is that a TARGET names: found and imported as ADK's own command line does it."""

from __future__ import annotations

import importlib
import importlib.util
import os
import sys
import traceback
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType

from perdure.errors import UsageError

ADK_DISABLES_DOTENV = "ADK_DISABLE_LOAD_DOTENV"
"""ADK's own switch."""


def modules_of(named: str, target: str) -> Iterator[ModuleType]:
    """Imports the modules in which the agent may be, in ADK's order: a package itself, then its ``agent``.

    First sets what the agent's ``.env`` says, and puts its folder on ``sys.path``.

    Args:
        named: a file, a folder or the dotted name of a module.
        target: what the user typed, for the messages.

    Raises:
        UsageError: there is no such thing, or it cannot be imported; the message says which.
    """
    place = _place_of(named, target)
    if str(place.root) not in sys.path:
        sys.path.insert(0, str(place.root))
    _load_dotenv(place.folder or _folder_of_module(named))
    module = _import(place.module, target)
    _check_place(module, place, target)
    yield module
    if hasattr(module, "__path__") and importlib.util.find_spec(f"{place.module}.agent") is not None:
        yield _import(f"{place.module}.agent", target)


def _import(name: str, target: str) -> ModuleType:
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        if error.name is not None and f"{name}.".startswith(f"{error.name}."):
            raise UsageError(
                f"{target}: there is no module {error.name!r}, and no file or folder of this name in {Path.cwd()}",
                target=target,
            ) from error
        raise _import_failed(target, error) from error
    except (Exception, SystemExit) as error:
        raise _import_failed(target, error) from error


def _import_failed(target: str, error: BaseException) -> UsageError:
    """Says what the last line of the traceback says, and where it was raised."""
    last = traceback.format_exception_only(error)[-1].strip()
    frames = [frame for frame in traceback.extract_tb(error.__traceback__) if not frame.filename.startswith("<frozen ")]
    # The first frames are this module's and importlib's.
    others = [frame for frame in frames if frame.filename not in (__file__, importlib.__file__)]
    where = f" ({others[-1].filename}, line {others[-1].lineno})" if others else ""
    return UsageError(f"{target} cannot be imported: {last}{where}", target=target)


def _check_place(module: ModuleType, place: _Place, target: str) -> None:
    """Raises: UsageError, when another module has taken the name of what is at the path."""
    if place.path is None:
        return
    files = [module.__file__] if module.__file__ is not None else list(getattr(module, "__path__", ()))
    if any(Path(file).resolve() in (place.path, place.path / "__init__.py") for file in files):
        return
    raise UsageError(
        f"{target}: the name {place.module!r} is taken by another module ({', '.join(map(str, files))}); rename "
        "the file or folder",
        target=target,
    )


@dataclass(frozen=True, slots=True)
class _Place:
    """Where an agent's module is.

    Attributes:
        root: must be on ``sys.path``.
        folder: where ADK would look for ``.env``, and in the folders above it; ``None``: ask the module.
        path: the file or folder that must be behind the module's name; ``None`` when only a name was given.
    """

    module: str
    root: Path
    folder: Path | None
    path: Path | None


def _place_of(named: str, target: str) -> _Place:
    path = Path(named).resolve()
    if path.name == "__init__.py":
        path = path.parent
    if named and path.is_dir():
        return _Place(path.name, path.parent, path, path)
    if path.is_file():
        if path.suffix != ".py":
            raise UsageError(f"{target}: {path.name} is no Python file; an agent's file ends with .py", target=target)
        names, root = [path.stem], path.parent
        while (root / "__init__.py").is_file():
            names, root = [root.name, *names], root.parent
        return _Place(".".join(names), root, path.parent, path)
    if not named or "/" in named or named.endswith(".py"):
        raise UsageError(f"{target}: there is no such file or folder below {Path.cwd()}", target=target)
    return _Place(named, Path.cwd(), None, None)


def _folder_of_module(name: str) -> Path:
    """The folder of a module that was only named, found without importing anything; else the working directory."""
    first, *inner = name.split(".")
    try:
        spec = importlib.util.find_spec(first)
    except (ImportError, ValueError):
        spec = None
    if spec is None:
        return Path.cwd()
    if spec.submodule_search_locations:
        place = Path(next(iter(spec.submodule_search_locations))).joinpath(*inner)
        return place if place.is_dir() else place.parent
    return Path(spec.origin).parent if spec.origin is not None else Path.cwd()


def _load_dotenv(folder: Path) -> None:
    """Sets what the next ``.env`` upwards says, as ADK does; what is set in the environment already stays."""
    if os.environ.get(ADK_DISABLES_DOTENV, "").lower() in ("1", "true"):
        return
    for place in (folder, *folder.parents):
        if (place / ".env").is_file():
            importlib.import_module("dotenv").load_dotenv(place / ".env")
            return
