"""Measurements: load on a server or an engine, sweeps, comparisons, and the report of their results."""
