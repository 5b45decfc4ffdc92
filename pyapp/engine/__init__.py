"""The device side at work."""
