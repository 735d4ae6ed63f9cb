"""Regular constraints: a regular expression as tables, in which every question is a look-up.

`regex_anchors`, `byte_automaton` and `token_automaton` make them, in a process of their own (`compile_process`, started
and watched by `compile_worker`); `matcher` walks them on the host, and a device walks them by `draftline.kernels`.
"""
