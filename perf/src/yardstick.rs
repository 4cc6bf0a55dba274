//! Yardsticks: small honest programs that do only the physical work that nobody can do without.

pub mod table;
