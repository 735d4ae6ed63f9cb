"""Regular constraints: a regular expression as tables, in which every question is a look-up.

`regex_anchors`, `byte_moves`, `byte_automaton` and `token_automaton` build the tables in a process of its own (`worker`,
run by `worker_pool`), with numpy over whole tables (`rows`, `graph`, `minimise`). `matcher` walks them on the host;
`arena` copies them to the device, where `draftline.kernels` walks them. Until large tables are built, `host_automaton`
walks the automaton over bytes (`starting`), by a tree of the vocabulary (`token_trie`).
"""
