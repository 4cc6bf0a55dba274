//! Load generators, yardsticks and comparisons.
