"""Where journals are kept. The only package that knows SQL."""
