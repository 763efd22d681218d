"""What is wrong with a database that has the tables of a store: the errors that all databases share."""

from __future__ import annotations

from perdure.errors import StoreCorrupt, StoreTooNew


def too_new(address: str, found: int, supported: int) -> StoreTooNew:
    """A later release made it."""
    return StoreTooNew(
        f"{address} has schema version {found}, this perdure knows versions up to {supported}; upgrade perdure",
        address=address,
        found=found,
        supported=supported,
    )


def no_version(address: str, found: object, where: str, current: int) -> StoreCorrupt:
    """Its version is none that any release has."""
    return StoreCorrupt(
        f"{address} says that its schema version is {found!r} ({where}); it must be a whole number from 1 on. Restore "
        f"it from a backup, or set it to the version that it was (this perdure makes {current}); nothing was changed",
        address=address,
        where=where,
    )


def corrupt(address: str, where: str, reason: str) -> StoreCorrupt:
    """Something in it cannot be read."""
    return StoreCorrupt(
        f"{address}: {where} cannot be read ({reason}); restore the database from a backup, or delete the session",
        address=address,
        where=where,
    )
