"""Pure decisions: standard library only, importable without TensorFlow."""
