"""What a person sees of a run: its history as a table, its summary, its picture."""
