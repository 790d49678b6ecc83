"""The command line: what people type, and what they read back. It must not decide: it calls the runtime and says so."""
