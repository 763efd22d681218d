"""perdure beside its peers on one piece of work: ``python -m bench peers``.

Every contender runs the same agent (``bench.orders``) over the same course (``course``), in a process and a virtual
environment of its own, because their needs do not go together.  What is compared is what each adds to raw ADK, per
step: a turn of the course has three (two model calls and a tool call).

``entries`` says who runs; ``ours``, ``raw``, ``dbos_plugin`` and ``temporal_plugin`` are what runs in the
contender's process (``child``); ``venvs`` makes the environments.
"""
