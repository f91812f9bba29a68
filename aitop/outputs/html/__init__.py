"""The report as one HTML file that needs nothing else: `page` fills the template, `charts` what its script draws."""
