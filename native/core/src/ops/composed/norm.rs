//! Norms of rows and heads.
