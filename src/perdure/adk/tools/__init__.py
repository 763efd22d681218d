"""Tool calls as steps: the stand-in that asks for one, the body that runs it, its outcome; and where tools come from.

Toolsets, code execution, tools that run an agent, and the application's artifact and memory services belong here too.
"""
