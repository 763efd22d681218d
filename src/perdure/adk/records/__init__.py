"""What is stored, and back: values, exceptions and ADK events as JSON, and the last messages of a turn that failed."""
