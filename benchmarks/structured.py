"""Coverage of JSON Schema compared with other engines: this file runs schemas/sections.py.

    python benchmarks/structured.py --schemas FOLDER --suite FOLDER

Python may find this file when something imports a package named ``structured``, so it imports nothing at the top.
"""

if __name__ == "__main__":
    from schemas.sections import main

    main()
