"""Shared by several benchmarks: model shapes, workloads, engines under measurement, provenance."""
