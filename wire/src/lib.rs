//! The protocol's bytes: frames, requests and replies. No sockets.
