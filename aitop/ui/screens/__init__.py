"""The full-screen views, made of panes."""
