"""A worker for `WorkerProcesses` that answers each job with itself: ``python -m echo_worker BYTES``."""

from __future__ import annotations

from draftline.structured.worker_processes import serve

if __name__ == "__main__":
    serve(lambda setup: lambda job: [(setup, job)])
