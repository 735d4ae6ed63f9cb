"""The concrete forms of a schema's language: a Lark grammar, and a regular expression if it is regular."""
