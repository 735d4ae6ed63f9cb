"""What several benchmarks share: shapes, workloads, engines under measurement, provenance."""
