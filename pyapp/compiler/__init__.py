"""Graph to plan: fusion, memory, lowering; and a NumPy run of any graph."""
