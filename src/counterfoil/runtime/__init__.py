"""The only package that acts: it asks models, runs tools, looks effects up, and writes down what happened."""
