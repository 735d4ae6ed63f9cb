"""What each JSON Schema keyword says of a value."""
