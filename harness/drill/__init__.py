"""Drills: what an overload or a failure did, and how the server came back."""
