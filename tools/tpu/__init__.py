"""What tools.tpu_check is made of: programs traced for a TPU, libtpu's compiler, and what its results say."""
