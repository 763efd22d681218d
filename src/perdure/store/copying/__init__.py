"""Moves all sessions of a store to another one, of the same kind or of another kind."""

from perdure.store.copying.copy import copy_store, undo_copy
from perdure.store.copying.digests import Compared
from perdure.store.copying.run import Copied, Stage, Told

__all__ = ["Compared", "Copied", "Stage", "Told", "copy_store", "undo_copy"]
