"""Measuring a user's own, unmodified training script: the probe inside it and the parent's side."""
