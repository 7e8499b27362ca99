"""What each rule reads (`inputs`) and answers (`rule_result`), and the rules by what they blame."""
