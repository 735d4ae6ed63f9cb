"""Arrays of different strings: the host remembers the items of each and masks the token that would close a duplicate."""
