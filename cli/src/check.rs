//! Checks that a person can run: the house under load, with everything killed that may be killed.

mod host;
