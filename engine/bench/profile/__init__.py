"""Where a step's time and memory go: traces of torch's profiler, summed up, and memory by batch size."""
