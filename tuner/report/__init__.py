"""What a user reads: progress, the table of trials, JSON for programs."""
