"""Structural tags: free text until a trigger, then a constraint, then an end, and free text again.

`xgrammar` reads XGrammar's structural-tag JSON into a `Form`, a tree whose leaves are other constraints. `nfa_builder` and
`determinize` turn a tree into an automaton over bytes, `lark` into a grammar, and `walk` finds the tags of an output.
"""
