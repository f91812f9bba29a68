"""The screen: Snapshots come in, drawings go out."""
