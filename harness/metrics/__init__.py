"""What was recorded: one request, many as columns, the live ledger, all tokens."""
