"""Predictors of time, memory and success of configurations: one file each."""
