"""What a model is: a graph and its tensor names."""
