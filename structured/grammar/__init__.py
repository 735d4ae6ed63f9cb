"""Constraints that are not regular, or too large for an automaton: llguidance's Earley parser walks them on the host.

This package is the only importer of llguidance.
"""
