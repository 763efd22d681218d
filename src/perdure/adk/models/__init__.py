"""Model calls, and what the invocation itself does in place and must not do twice: made once, recorded, answered from
the record in a replay.
"""
