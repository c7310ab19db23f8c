"""A training package started with `python -m`."""
