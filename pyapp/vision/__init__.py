"""Pixels to a tensor, a tensor to facts."""
