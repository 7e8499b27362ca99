"""Layer 3: users against the engine's scheduler in simulated time, and true knees."""
