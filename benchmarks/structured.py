"""Structured output, measured beside other engines: see structured_sections.py, which this runs.

    python benchmarks/structured.py --schemas FOLDER --suite FOLDER

Nothing is imported where this file is taken for the package of its name.
"""

if __name__ == "__main__":
    from schemas.sections import main

    main()
