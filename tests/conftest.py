"""Settings of all tests."""

from hypothesis import settings

# A busy machine must not fail a law.
settings.register_profile("laws", deadline=None)
settings.load_profile("laws")
