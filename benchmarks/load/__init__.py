"""The parts of serving.py: clients, streams and arrivals."""
