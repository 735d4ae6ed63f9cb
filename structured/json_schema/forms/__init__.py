"""A schema's language written down: as a Lark grammar, or as one regular expression."""
