"""What is measured in a page by Python: the engine at work, without the door in front of it."""
