"""Who drafts how many tokens, what that costs, and how the drafter's own cache keeps up."""
