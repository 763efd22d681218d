"""Waits for what comes from outside: long-running tools, late answers, sign-ins and their tokens.

The legs into which such waits divide a turn, and what one leg hands on to the next, are here too.
"""
