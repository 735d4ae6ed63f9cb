"""From a Python type to a JSON Schema whose every instance the type accepts.

A type's own JSON Schema often says less than its validator does. So the schema here comes from the validator's own
description: pydantic's core schema, or msgspec's type information.
"""
