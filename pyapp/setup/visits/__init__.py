"""Scripted visits: a client of its own each, a fault drawn at random in each, and what every visit must end in."""
