"""Layer 6: users' requests, their pacing, and the transport of records to the master."""
