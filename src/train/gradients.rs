//! Accumulated gradients (to come).
