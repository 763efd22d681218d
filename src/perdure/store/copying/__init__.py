"""Moves all sessions of a store to another one, of the same kind or of another kind."""

from perdure.store.copying.copy import Copied, Stage, Told, copy_store, undo_copy
from perdure.store.copying.digests import Compared

__all__ = ["Compared", "Copied", "Stage", "Told", "copy_store", "undo_copy"]
