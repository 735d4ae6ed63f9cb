"""From sampled tokens to what a client reads: text, stops, log-probabilities, and mailboxes for slow readers."""
