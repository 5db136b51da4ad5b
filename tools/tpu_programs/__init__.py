"""Trainings that tools.tpu_check compiles, each as a file of one's own may be."""
