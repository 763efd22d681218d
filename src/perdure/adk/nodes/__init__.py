"""Nodes of workflows: their functions as steps, what those gave, limits, retries, and the gaps between nodes."""
