"""The contenders' virtual environments: made once, under ``build/``, from the pins beside this file."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]
REQUIREMENTS = Path(__file__).parent / "requirements"


def python_of(environment: str | None) -> str:
    """The interpreter of a contender's environment; makes the environment if it is not there.

    Args:
        environment: the name of a file in ``requirements``.  ``None``: perdure's own environment.

    Raises:
        subprocess.CalledProcessError: pip failed; what it said is on the terminal.
    """
    if environment is None:
        return sys.executable
    pins = REQUIREMENTS / f"{environment}.txt"
    folder = ROOT / "build" / "peers" / environment
    python, stamp = folder / "bin" / "python", folder / "pins.txt"
    if not stamp.exists() or stamp.read_text() != pins.read_text():
        print(f"setting up {folder} (once)", file=sys.stderr)
        subprocess.run([sys.executable, "-m", "venv", "--clear", str(folder)], check=True)
        install = ["-m", "pip", "install", "-qq", "--disable-pip-version-check", "-r", str(pins)]
        subprocess.run([str(python), *install], check=True)
        stamp.write_text(pins.read_text())
    return str(python)
