"""Clients that attack a server, for the soak test: what they do to another client."""
