"""Parts of serving.py: clients, streams and workloads."""
