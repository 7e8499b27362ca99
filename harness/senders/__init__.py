"""Layer 8: users' requests, their pacing, the load processes, records on their way to the master."""
