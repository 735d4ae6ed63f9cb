"""The parts of exactness.py."""
