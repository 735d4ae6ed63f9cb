"""Structured output: constraints, their compiled grammars and matchers."""
