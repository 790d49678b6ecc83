"""What tests are made of: a provider that keeps count outside of the killed process, and the kits built on it."""
