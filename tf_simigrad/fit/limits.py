"""Sizes beyond which something is done otherwise, for those who have to name them without TensorFlow. Standard library only."""

DENSE_TABLE_ELEMENTS = 2**25
"""128 MiB in float32: the vocabulary of a language model, nearly all of whose rows a large batch touches, is smaller."""
