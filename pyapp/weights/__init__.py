"""Files of weights: readers, quant formats, the store."""
