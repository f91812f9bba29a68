"""What panes are made of: lines, bars, charts, and base classes of panes."""
