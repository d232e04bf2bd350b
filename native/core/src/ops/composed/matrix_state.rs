//! Recurrences whose state is a matrix.
