"""Pure maths: tensors in, tensors out; no tf.distribute, no Keras, no variables."""
