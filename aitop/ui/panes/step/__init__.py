"""The step pane: phases, figures and charts."""
