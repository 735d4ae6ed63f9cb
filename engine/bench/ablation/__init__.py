"""What each optimization is worth: the same load with each one switched in turn, and with all off."""
