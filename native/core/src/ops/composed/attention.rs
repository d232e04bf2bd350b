//! Attention over a window that slides.
