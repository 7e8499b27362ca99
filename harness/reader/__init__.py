"""Layer 7: sockets to records: kernel stamps, a fast path in C, the decoder process."""
