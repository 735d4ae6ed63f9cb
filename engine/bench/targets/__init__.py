"""What load is put on: a gRPC server, an OpenAI-compatible HTTP server, or an engine in this process."""
