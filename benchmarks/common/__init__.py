"""Shared by several benchmarks: a type as applications have them, options of the engine, the time of compiling."""
