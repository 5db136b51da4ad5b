"""Every private name of Keras and TensorFlow that this package relies on, one small function each. A leaf: imports nothing of ours."""
