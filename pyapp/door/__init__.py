"""The parts of the client: what callers may ask, the device as the client sees it, events, what it is wired to."""
