"""Arrays of different items: the host remembers the items of each, and masks what could only repeat one."""
