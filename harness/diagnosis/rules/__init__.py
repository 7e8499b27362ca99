"""What each rule reads (`facts`), what it answers, and the rules by what they blame."""
