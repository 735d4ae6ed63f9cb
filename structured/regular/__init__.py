"""Regular languages over Unicode code points: syntax trees, an ECMA-262 parser, automata, and printing as a regex.

The JSON Schema front end uses them to decide whether patterns overlap and whether a conjunction can be met, and to
write sets of numbers as decimal digits. This package knows nothing of JSON or of tokens.
"""
