"""Time the Triton operations at the shapes of real models, and whole decode steps: see `kernel_sections`.

    python benchmarks/kernels.py [--sections decode,prefill,...] [--seconds 220] [--out results.json]

Only the command is here. A script's folder is on Python's path, and transformers looks for a package of this file's name
there: what it finds must not import anything.
"""

if __name__ == "__main__":
    from kernel_timing.sections import main

    main()
