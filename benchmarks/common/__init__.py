"""Shared by several benchmarks: a type as applications have them, options of the engine, a server, the time of compiling."""
