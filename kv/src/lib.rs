//! Uses: MVCC tables over real stores.
