"""The engine: scheduler, step, runner, and the faces (LLM, AsyncEngine, gRPC, command line)."""
