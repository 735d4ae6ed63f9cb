"""Clients of a server: one Session for many requests, blocking or with asyncio."""
