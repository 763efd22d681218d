"""ADK's own interfaces over durable sessions: its ``Runner``, its session service, its events and forms of waiting.

Begin with ``durable_runner``, a client of the engine.  ``passing`` is what a live turn sends towards it.
"""
