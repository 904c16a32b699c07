"""Model files: their format, reading and writing them, and the report of loading."""
