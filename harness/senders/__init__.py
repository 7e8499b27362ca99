"""Layer 8: users' requests, their pacing, the load processes, the way of records to the master."""
