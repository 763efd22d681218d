"""JSON values: what may be stored, and what a request amounts to."""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Mapping, Sequence
from typing import cast

from perdure.errors import ValueNotStorable


def ensure_storable(value: object, where: str) -> None:
    """Checks that a value is JSON as it is (lists, dicts with string keys, strings, numbers, booleans, None).

    Args:
        where: names the value in the error, such as ``"state['cart']"``.

    Raises:
        ValueNotStorable: names the place inside the value and the type that has no JSON form.
    """
    bad = _first_bad(value, where)
    if bad is not None:
        path, found = bad
        raise ValueNotStorable(
            f"{path} is {found} and cannot be stored; store only JSON values "
            "(str, int, finite float, bool, None, and lists and dicts of them)",
            where=where,
            path=path,
            type_name=type(value).__name__,
        )


def _first_bad(value: object, path: str) -> tuple[str, str] | None:
    if value is None or isinstance(value, (str, bool, int)):
        return None
    if isinstance(value, float):
        return None if math.isfinite(value) else (path, f"the number {value}")
    if isinstance(value, Mapping):
        for key, item in cast("Mapping[object, object]", value).items():
            if not isinstance(key, str):
                return path, f"a mapping with the key {key!r}"
            bad = _first_bad(item, f"{path}[{key!r}]")
            if bad is not None:
                return bad
        return None
    if isinstance(value, (list, tuple)):
        for index, item in enumerate(cast("Sequence[object]", value)):
            bad = _first_bad(item, f"{path}[{index}]")
            if bad is not None:
                return bad
        return None
    return path, f"a {type(value).__module__}.{type(value).__qualname__}"


def fingerprint(*parts: object) -> str:
    """A short, stable digest of JSON values: equal requests have equal fingerprints."""
    text = json.dumps(parts, sort_keys=True, ensure_ascii=False, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()[:32]
