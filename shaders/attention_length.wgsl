// Positions of a part, for a context of n: MIN_SPLIT at least, so that a short one has few parts.
fn split_length(n: u32) -> u32 {
    return max(${MIN_SPLIT}u, (n + ${SPLITS - 1}u) / ${SPLITS}u);
}
