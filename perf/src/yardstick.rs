//! Yardsticks: small honest programs that do only the physical work that nobody can do without.

pub mod cold_read;
pub mod echo;
pub mod sync_write;
pub mod table;
