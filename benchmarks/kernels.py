"""Time Triton operations at the shapes of real models, and whole decode steps. It runs kernel_timing/sections.py.

    python benchmarks/kernels.py [--sections decode,prefill,...] [--seconds 220] [--out results.json]

A script's folder is on Python's path, and transformers imports a package named ``kernels`` if there is one. So this
file imports nothing at the top.
"""

if __name__ == "__main__":
    from kernel_timing.sections import main

    main()
