"""``perdure chat``: talk to an agent in a durable session."""
