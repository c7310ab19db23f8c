"""What can be tuned: a training script today; each kind of job is one file."""
