"""JSON values: what may be stored, and what a request amounts to."""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Mapping, Sequence
from typing import cast

from perdure.arguments import shortened, shown
from perdure.errors import ValueNotStorable

_MAX_INT_BITS = 14_000
_MAX_DEPTH = 200


def ensure_storable(value: object, where: str) -> None:
    """Checks that a value is JSON as it is (lists, dicts with string keys, strings, numbers, booleans, None).

    Args:
        where: names the value in the error, such as ``"state['cart']"``.

    Raises:
        ValueNotStorable: names the place inside the value and the type that has no JSON form.
    """
    bad = _first_bad(value, where)
    if bad is not None:
        path, found = shortened(bad[0]), bad[1]
        raise ValueNotStorable(
            f"{path} is {found} and cannot be stored; store only JSON values "
            "(str, int, finite float, bool, None, and lists and dicts of them)",
            where=where,
            path=path,
            type_name=type(value).__name__,
        )


def _first_bad(value: object, path: str, depth: int = 0) -> tuple[str, str] | None:
    if value is None or isinstance(value, bool):
        return None
    if isinstance(value, str):
        return None if is_unicode(value) else (path, "text that is no valid Unicode (it has half of a surrogate pair)")
    if isinstance(value, int):
        return None if is_printable(value) else (path, "an integer of more than 4,000 digits")
    if depth > _MAX_DEPTH:
        return path, f"nested more than {_MAX_DEPTH} deep"
    if isinstance(value, float):
        return None if math.isfinite(value) else (path, f"the number {value}")
    if isinstance(value, Mapping):
        for key, item in cast("Mapping[object, object]", value).items():
            if not isinstance(key, str) or not is_unicode(key):
                return path, f"a mapping with the key {shown(key)}"
            bad = _first_bad(item, f"{path}[{key!r}]", depth + 1)
            if bad is not None:
                return bad
        return None
    if isinstance(value, (list, tuple)):
        for index, item in enumerate(cast("Sequence[object]", value)):
            bad = _first_bad(item, f"{path}[{index}]", depth + 1)
            if bad is not None:
                return bad
        return None
    return path, f"a {type(value).__module__}.{type(value).__qualname__}"


def is_unicode(text: str) -> bool:
    """Whether a text has a UTF-8 form: half of a surrogate pair has none."""
    if text.isascii():
        return True
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def is_printable(number: int) -> bool:
    """Whether an integer can be written as decimal digits: Python itself writes no more than 4,300."""
    return number.bit_length() <= _MAX_INT_BITS


def fingerprint(*parts: object) -> str:
    """A short, stable digest of JSON values: equal requests have equal fingerprints."""
    text = json.dumps(parts, sort_keys=True, ensure_ascii=False, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()[:32]
