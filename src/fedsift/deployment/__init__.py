"""A fit on real machines: the plan, the app that carries it out, and all of it on this machine."""
