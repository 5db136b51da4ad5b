"""What tools.prepare_data does, one kind of data a file: each has add_arguments(parser) and prepare(arguments)."""
