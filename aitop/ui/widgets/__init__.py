"""What several panes are drawn with: lines, bars, charts, and the panes that others build on."""
