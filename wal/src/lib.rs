//! Remembers: groups of records in segments, durable in order. It does not know what they mean.
