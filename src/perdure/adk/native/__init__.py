"""ADK's own interfaces over durable sessions: its ``Runner``, its session service, its events and forms of waiting.

Begin with ``durable_runner``.  A client of the engine, which knows of no live turn.
"""
