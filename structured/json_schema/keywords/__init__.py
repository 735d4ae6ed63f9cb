"""The keywords of JSON Schema, each as a clause: the values that satisfy it, and those that do not."""
