//! Speaks: the pipeline, its event loop and the server around it.
