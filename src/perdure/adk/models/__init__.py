"""Model calls: made once, tried again when that is worth it, recorded, and answered from the record in a replay.

``once`` does the same for what the invocation itself does in place: a listing of tools, a summary of the history.
"""
