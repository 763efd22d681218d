"""The live invocation: one turn as a task, who in it goes on next, and what of it reaches the journal.

Begin with ``turn``; ``core`` is what its parts share, ``conductor`` and ``dispatch`` keep it in step with the journal.
"""
