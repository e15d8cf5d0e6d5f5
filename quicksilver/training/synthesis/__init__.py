"""Training rows made by rule, without a model: each module yields rows of one skill from a seeded random source."""
