"""What each rule reads (`facts`), what it answers (`finding`), and the rules by what they blame."""
