"""How values look on a terminal and in JSON.  Everything a model or a user wrote goes through ``clean``."""

from __future__ import annotations

import json
import re
from datetime import datetime

import click
from pydantic import BaseModel
from rich.console import Console

from perdure.session.model import JsonObject, JsonValue

_UNSAFE = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069]")
"""Control characters, which could move the cursor or recolour the screen, and marks that turn the direction of text."""

CELL_WIDTH = 60
"""Characters of a value in a table."""

PIPE_WIDTH = 200
"""Columns of a table that goes into a pipe or a file."""


def terminal(*, plain: bool = False) -> Console:
    """A console on stdout.  ``plain``: no colours, whatever stdout is."""
    console = Console(highlight=False, markup=False, emoji=False, color_system=None if plain else "auto")
    if not console.is_terminal:
        console.width = PIPE_WIDTH
    return console


def answer_value(text: str) -> JsonValue:
    """What somebody typed as an answer: JSON if it reads as JSON, else the text."""

    def no_constant(name: str) -> None:
        raise ValueError(name)  # NaN and the like are words here.

    try:
        return json.loads(text, parse_constant=no_constant)
    except ValueError:
        return text.rstrip("\r\n")


def print_json(document: JsonValue) -> None:
    """One JSON document."""
    click.echo(json.dumps(document, indent=2, ensure_ascii=False))


def print_json_line(shape: BaseModel) -> None:
    """One JSON document on one line."""
    click.echo(json.dumps(to_json(shape), ensure_ascii=False))


def to_json(shape: BaseModel) -> JsonObject:
    """A public shape as JSON, all fields in it."""
    return shape.model_dump(mode="json")


def clean(text: str) -> str:
    """The text without what a terminal would obey instead of showing."""
    return _UNSAFE.sub("\N{REPLACEMENT CHARACTER}", text.replace("\r\n", "\n"))


def cut(text: str, width: int = CELL_WIDTH) -> str:
    """The text on one line of at most ``width`` characters."""
    line = " ".join(clean(text).split())
    return line if len(line) <= width else line[: width - 1] + "…"


def compact(value: JsonValue) -> str:
    """A JSON value on one line, whole."""
    return clean(json.dumps(value, ensure_ascii=False))


def call_text(tool_name: str, arguments: JsonObject, width: int = 100) -> str:
    """A tool call as one writes it: ``refund_order(order_id="A-7", amount=20)``."""
    given = ", ".join(f"{name}={compact(value)}" for name, value in arguments.items())
    return cut(f"{tool_name}({given})", width)


def local_time(moment: datetime) -> str:
    """A moment as the clock on the wall shows it."""
    return moment.astimezone().strftime("%Y-%m-%d %H:%M:%S")
