"""The command line: ``perdure demo``, ``chat``, ``serve``, ``sessions`` and ``store``.

A thin face over ``AgentSessionClient`` and the engine.  Nothing here imports google-adk before a command
needs an agent, so what only reads or answers sessions starts fast.
"""

from perdure.cli.root import main

__all__ = ["main"]
