"""Load: workloads, the times at which their requests arrive, and the run that sends them."""
