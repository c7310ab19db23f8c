"""The domain core: records, spaces, hardware, predictors. Knows no SQL, starts no process."""

__version__ = "0.1.0"
