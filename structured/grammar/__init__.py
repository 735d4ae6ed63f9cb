"""Constraints that no automaton enforces: a context-free grammar, walked by llguidance on the host."""
