"""One module per promise; `python -m benchmarks.NAME` prints its figures beside the rivals'."""
