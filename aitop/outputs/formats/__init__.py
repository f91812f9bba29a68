"""What `aitop replay --export` writes: files that other programs open."""
