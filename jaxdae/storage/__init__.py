"""What is kept on disk: files, runs, batches, checkpoints, and whether they belong to a call."""
