"""Layer 9: drills: the file, its events, the stage, what happened, and how the server came back."""
