"""Regular languages over Unicode code points: syntax trees, an ECMA-262 parser, automata, and printing as a regex.

What the JSON Schema front end decides with: whether two patterns overlap, whether a conjunction can be met at all, what
a set of numbers looks like in decimal digits. It knows nothing of JSON or of tokens.
"""
