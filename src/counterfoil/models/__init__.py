"""One file per model API, and the scripted model; none of them knows another, and none of them retries."""
