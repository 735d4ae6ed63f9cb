"""Clients of a server: one Session for many requests, blocking or with asyncio."""

import os

# gRPC's own handlers of forks end about every tenth fork of a process that uses it with asyncio by SIGSEGV, also a fork
# that makes no call. gRPC reads this when it is imported.
os.environ.setdefault("GRPC_ENABLE_FORK_SUPPORT", "0")
