"""What the hook measures inside servers: requests, and iterations (turns) of an engine's loop.

There is a file for each kind of server. `names.py` lists what is patched in which release; `server.py` and
`requests.py` have what all of them share.
"""
