"""Which side answers."""
