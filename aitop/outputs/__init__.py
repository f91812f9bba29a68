"""What leaves the program other than the screen: text, JSON, recordings."""
