"""What the command `jaxdae` does, one file for each of its verbs."""
