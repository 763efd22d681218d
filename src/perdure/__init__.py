"""perdure runs Google ADK agents as durable sessions."""
