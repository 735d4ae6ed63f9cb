"""Shared by several benchmarks of structured output: a type as applications have them."""
