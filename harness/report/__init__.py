"""Layer 12: records to words and pictures, offline, from a run folder."""
