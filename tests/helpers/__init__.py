"""What tests of several rooms share: systems, references, the matrix of agreement."""
