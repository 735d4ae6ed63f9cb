"""The parts of structured.py and constrained.py: schema coverage and extraction documents."""
