"""Tandem: a vision model and a language model taking turns on the shopper's own GPU."""

__version__ = "0.1.0"
