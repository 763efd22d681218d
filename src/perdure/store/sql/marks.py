"""What a store says of itself when it must not be used: it was moved elsewhere, or it is a copy that is not whole yet.

The marks are rows of ``meta``, which whoever opens the store reads.  Processes that have it open already are refused by
the database itself, in words of the same form.
"""

from __future__ import annotations

from collections.abc import Mapping

from perdure.errors import StoreError, StoreMoved, StoreUnfinished

MOVED_TO = "moved_to"
"""The address that a store was moved to.  It stands there from before the first session is copied."""

COPY_OF = "copy_of"
"""Of what a store is a copy that is not whole yet: the id of the source, a space, its address."""

_MOVED = "moved to "
_UNFINISHED = "unfinished copy of "


def moved_words(address: str) -> str:
    """What the database says when it refuses a write to a store that was moved."""
    return _MOVED + address


def unfinished_words(address: str) -> str:
    """What the database says when it refuses a worker in a store that is not whole yet."""
    return _UNFINISHED + address


def refusal(words: str, address: str) -> StoreError | None:
    """The error that a refusal of the database stands for; ``None``: it is another one."""
    if words.startswith(_MOVED):
        return _moved(address, words.removeprefix(_MOVED))
    if words.startswith(_UNFINISHED):
        return _unfinished(address, words.removeprefix(_UNFINISHED))
    return None


def refuse_marked(address: str, meta: Mapping[str, str]) -> None:
    """Refuses to open a store that bears a mark.

    Raises:
        StoreMoved, StoreUnfinished
    """
    if MOVED_TO in meta:
        raise _moved(address, meta[MOVED_TO])
    if COPY_OF in meta:
        raise _unfinished(address, meta[COPY_OF].partition(" ")[2])


def _moved(address: str, to: str) -> StoreMoved:
    return StoreMoved(
        f"{address} was moved to {to}, and takes no more writes; use that store (if it is an unfinished copy, run "
        "'perdure store copy' once more)",
        address=address,
        moved_to=to,
    )


def _unfinished(address: str, source: str) -> StoreUnfinished:
    return StoreUnfinished(
        f"{address} is an unfinished copy of {source}; run 'perdure store copy' once more, and it goes on where it "
        "stopped",
        address=address,
        copy_of=source,
    )
