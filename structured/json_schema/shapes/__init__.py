"""The normalised form: a set of JSON values as a union of simple shapes, type by type.

`numbers`, `strings`, `arrays` and `objects` have the shapes of one type, each with its intersection; `union` has those of all
types together. Members and items are `demands`: schemas, not shapes, so that a schema may contain itself.
"""
