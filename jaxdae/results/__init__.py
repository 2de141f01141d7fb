"""Results of runs: trajectories, what is computed of them, and their files."""
