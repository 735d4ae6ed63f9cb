"""From sampled tokens to a client's updates: text, stops, log-probabilities, and mailboxes for slow readers."""
