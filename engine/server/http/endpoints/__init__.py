"""The endpoints: of each its body, its requests to the engine, and its answer."""
