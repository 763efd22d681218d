"""What a durable session costs, as ratios to raw ADK in the same run.  ``python -m bench`` (or ``make bench``).

Absolute times say little about a library: they are the machine's.  So every measure runs the same work on raw ADK and
on perdure in turns, in one process, and compares medians.  ``measures`` has one module per subject, ``workload`` what
they all run, ``report`` the table.
"""
