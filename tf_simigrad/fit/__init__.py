"""What a user hands to ``fit``."""
