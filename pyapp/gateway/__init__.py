"""The server side (CPython): static site and cloud stream."""
