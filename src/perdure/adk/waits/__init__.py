"""Waits for what comes from outside: long-running tools, answers in a later turn, sign-ins and their tokens; and the legs
into which such waits divide a turn.
"""
