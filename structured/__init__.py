"""Structured output: constraints, their compiled grammars and matchers.

To read the code, follow a constraint:

1. `constraint` finds its `language`. `json_schema`, `grammar.ebnf` and `tags.xgrammar` read sources; `regular` has the
   expressions and automata that they work with. `types` derives schemas from Python's types before that.
2. `compiler` has workers compile the language, by one of two `backends`: `automaton` or `grammar`.
3. Both make a `compiled` constraint. Its `matcher` follows an output and writes `masks`. Around a grammar's, `unique`
   compares the items of arrays.
4. `tags.walk` finds the tags of an output while its text comes.
"""
