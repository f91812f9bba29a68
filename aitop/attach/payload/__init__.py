"""What is carried into the target: the injected line, the hook's modules, and the memory or file that holds them."""
