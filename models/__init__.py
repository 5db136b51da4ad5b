"""Models and tasks of the experiments: plain Keras, nothing of tf_simigrad."""
