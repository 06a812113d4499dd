//! Placeholder, replaced by the first commit series.
