"""Kill a flow at every window, resume it, let the world outside be the judge: `counterfoil crashtest` as a library.

It must not stand in production code: nothing outside this package knows of it.
"""
