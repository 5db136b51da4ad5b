"""Command lines; nothing imports them."""
