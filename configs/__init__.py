"""Experiments, one a file, each with `get_config()`."""
