"""Tool calls and reasoning: formats, a request's constraint, and the parts of an output."""
