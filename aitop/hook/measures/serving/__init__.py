"""What the hook measures inside servers: requests, and the turns of an engine's loop. A file for each kind of server.

`names.py` has what is patched in which release, `requests.py` what all of them share.
"""
