"""Nodes of workflows: their functions as steps, what those gave, their limits and retries, and the gaps between them."""
