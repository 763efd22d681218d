"""``perdure demo``: a worker is killed in the middle of a refund, and the refund happens once."""
