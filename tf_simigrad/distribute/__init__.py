"""The only code that knows how many replicas there are and how they talk."""
