"""Read YAML. A key that a mapping has twice is an error: YAML's own reader drops the first value, and says nothing."""

from __future__ import annotations

from typing import Any

import yaml
from typing_extensions import override


class RepeatedKeyError(yaml.MarkedYAMLError):
    """A mapping has a key twice. ``key`` is the key, and ``line`` the line of the second one."""

    def __init__(self, node: yaml.ScalarNode) -> None:
        super().__init__(problem=f"{node.value}: is set twice", problem_mark=node.start_mark)
        self.key: str = node.value
        self.line: int = node.start_mark.line + 1


def read_yaml(text: str) -> object:
    """Read the values of a YAML text.

    Raises:
        RepeatedKeyError: a mapping has a key twice.
        yaml.YAMLError: the text is not YAML.
    """
    loader = _Loader(text)
    try:
        return loader.get_single_data()
    finally:
        loader.dispose()


class _Loader(yaml.SafeLoader):
    @override
    def compose_mapping_node(self, anchor: Any) -> yaml.MappingNode:
        # Here, as the mapping gets the keys of its "<<" later, which its own may override.
        mapping = super().compose_mapping_node(anchor)
        seen: set[tuple[str, str]] = set()
        for key in (key for key, _ in mapping.value if isinstance(key, yaml.ScalarNode)):
            if (key.tag, key.value) in seen:
                raise RepeatedKeyError(key)
            seen.add((key.tag, key.value))
        return mapping
