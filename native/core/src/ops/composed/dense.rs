//! Linear layers, tables of rows.
