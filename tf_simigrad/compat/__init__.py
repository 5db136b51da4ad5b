"""Every private name of Keras and TensorFlow relied on, one small function each. A leaf: imports nothing of ours."""
