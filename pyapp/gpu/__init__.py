"""The only place that touches navigator.gpu."""
