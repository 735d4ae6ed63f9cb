"""Commands about JSON Schemas. They need no model."""
