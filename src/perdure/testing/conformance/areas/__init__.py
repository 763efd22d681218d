"""The cases, one module for each area."""
